"""Decides which requests compute how many tokens in each step. Pure Python: no jax, no numpy, no transformers."""

from scheduler.cache.specs import (
    CacheGroupsConfig,
    CacheGroupSpec,
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    SlidingWindowSpec,
)
from scheduler.config import CacheConfig, Config, SchedulerConfig, SpeculativeConfig
from scheduler.interface import SchedulerInterface
from scheduler.output import (
    CachedRequestData,
    EngineCoreOutput,
    EngineCoreOutputs,
    ModelRunnerOutput,
    NewRequestData,
    SchedulerOutput,
)
from scheduler.request import EngineRequest, EngineRequestStatus, FinishReason
from scheduler.sampling import SamplingParams
from scheduler.scheduler import Scheduler

__all__ = [
    "CacheConfig",
    "CacheGroupSpec",
    "CacheGroupsConfig",
    "CachedRequestData",
    "ChunkedLocalAttentionSpec",
    "Config",
    "EngineCoreOutput",
    "EngineCoreOutputs",
    "EngineRequest",
    "EngineRequestStatus",
    "FinishReason",
    "FullAttentionSpec",
    "ModelRunnerOutput",
    "NewRequestData",
    "SamplingParams",
    "Scheduler",
    "SchedulerConfig",
    "SchedulerInterface",
    "SchedulerOutput",
    "SlidingWindowSpec",
    "SpeculativeConfig",
]
