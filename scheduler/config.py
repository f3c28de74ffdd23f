"""What a scheduler is told once, at its start."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class SchedulingPolicy(StrEnum):
    """How waiting requests are ordered."""

    FCFS = "fcfs"


@dataclass(slots=True)
class SchedulerConfig:
    """Limits and policy of one scheduler.

    `max_num_batched_tokens` is the token budget of a step and `max_num_seqs` the most requests that run at once.
    `long_prefill_token_threshold` caps the prompt tokens that one request computes in a step (None: no cap).
    `max_num_seq_buckets` are the batch sizes that the runner compiled: no more requests run than the largest holds
    (None: `max_num_seqs`). Raises ValueError for a limit below 1 or an unknown policy.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    policy: str = SchedulingPolicy.FCFS
    long_prefill_token_threshold: int | None = None
    chunked_prefill_enabled: bool = True
    max_num_seq_buckets: list[int] | None = None
    async_scheduling: bool = False

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        self.policy = SchedulingPolicy(self.policy)


@dataclass(slots=True)
class CacheConfig:
    """The KV cache's size: `num_pages` pages (the null page counted) of `page_size` tokens each."""

    num_pages: int
    page_size: int = 16
    enable_prefix_caching: bool = True


@dataclass(slots=True)
class SpeculativeConfig:
    """`num_speculative_tokens` is the most draft tokens that one request verifies in a step."""

    num_speculative_tokens: int = 0


@dataclass(slots=True)
class Config:
    """Everything that a Scheduler is made from, besides the cache groups.

    Without a `speculative_config` as many drafts are verified as the runner proposes.
    """

    scheduler_config: SchedulerConfig
    cache_config: CacheConfig
    speculative_config: SpeculativeConfig | None = None
