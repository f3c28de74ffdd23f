"""Running totals of a scheduler, for displays and benchmarks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SchedulerStats:
    """Where things stand (running, waiting, pages), and totals since the start.

    `num_prompt_tokens` are those of requests that began, `num_cached_tokens` those of them found in the cache.
    `num_preemptions` counts each time that a request lost its pages, `num_recomputed_tokens` what it had computed.
    """

    num_running: int = 0
    num_waiting: int = 0
    num_used_pages: int = 0
    num_pages: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_recomputed_tokens: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
