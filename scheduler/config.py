"""What a scheduler is told once, at its start."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class SchedulingPolicy(StrEnum):
    """The order in which waiting requests begin.

    `fcfs`: as they were added. `priority`: the smallest `priority` first, then the earliest `arrival_time`, then as
    they were added; the last in that order is the first to be preempted. `offline`: for throughput; requests that
    share a prefix follow each other, the longest come first, and none begins before the pool has the pages of all
    that it may generate.
    """

    FCFS = "fcfs"
    PRIORITY = "priority"
    OFFLINE = "offline"


@dataclass(slots=True)
class SchedulerConfig:
    """Limits and policy of one scheduler.

    `max_num_batched_tokens` is the token budget of a step and `max_num_seqs` the most requests that run at once.
    `long_prefill_token_threshold` caps the tokens that one request computes in a step (None or 0: no cap).
    `max_num_seq_buckets` are the batch sizes that the runner compiled: no more requests run than the largest holds
    (None: `max_num_seqs`). With `async_scheduling` a step may be scheduled before the tokens of the step before it
    are known. `record_events` keeps the events of requests until `Scheduler.take_events`.
    Raises ValueError for a limit out of range, an unknown policy, or settings that exclude each other.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    policy: SchedulingPolicy | str = SchedulingPolicy.FCFS
    long_prefill_token_threshold: int | None = None
    chunked_prefill_enabled: bool = True
    max_num_seq_buckets: list[int] | None = None
    async_scheduling: bool = False
    record_events: bool = False

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        self.policy = SchedulingPolicy(self.policy)
        threshold = self.long_prefill_token_threshold or 0
        if threshold < 0:
            raise ValueError(f"long_prefill_token_threshold must be at least 0, not {threshold}")
        if threshold and not self.chunked_prefill_enabled:
            raise ValueError(
                "long_prefill_token_threshold divides prompts, which chunked_prefill_enabled=False forbids"
            )
        if self.max_num_seq_buckets is not None and min(self.max_num_seq_buckets, default=0) < 1:
            raise ValueError(f"max_num_seq_buckets must be sizes of at least 1, not {self.max_num_seq_buckets}")

    @property
    def max_chunk(self) -> int:
        """The most tokens of one request in a step."""
        return min(self.long_prefill_token_threshold or self.max_num_batched_tokens, self.max_num_batched_tokens)


@dataclass(slots=True)
class CacheConfig:
    """The KV cache's size: `num_pages` pages (the null page counted) of `page_size` tokens each."""

    num_pages: int
    page_size: int = 16
    enable_prefix_caching: bool = True

    def __post_init__(self) -> None:
        if self.page_size < 1:
            raise ValueError(f"page_size must be at least 1, not {self.page_size}")


@dataclass(slots=True)
class SpeculativeConfig:
    """`num_speculative_tokens` is the most draft tokens that one request verifies in a step."""

    num_speculative_tokens: int = 0

    def __post_init__(self) -> None:
        if self.num_speculative_tokens < 0:
            raise ValueError(f"num_speculative_tokens must be at least 0, not {self.num_speculative_tokens}")


@dataclass(slots=True)
class Config:
    """Everything that a Scheduler is made from, besides the cache groups.

    Without a `speculative_config` as many drafts are verified as the runner proposes.
    """

    scheduler_config: SchedulerConfig
    cache_config: CacheConfig
    speculative_config: SpeculativeConfig | None = None
