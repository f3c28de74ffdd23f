"""How fast the engine is on a workload."""
