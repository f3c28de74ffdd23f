"""The instruction sets that the native kernels are compiled for."""

from __future__ import annotations

from pathlib import Path


def instruction_sets() -> list[str]:
    """Those that this machine has; the best one is what "" gives."""
    cpuinfo = Path("/proc/cpuinfo")
    flags = cpuinfo.read_text().split() if cpuinfo.exists() else []
    return ["", "baseline", *(name for name, flag in [("avx2", "avx2"), ("avx512", "avx512f")] if flag in flags)]
