"""One request and where it stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum, auto

from scheduler.sampling import SamplingParams


class FinishReason(StrEnum):
    """Why a request ended, in the words of the output."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class EngineRequestStatus(IntEnum):
    """WAITING → RUNNING (⇄ PREEMPTED) → one of FINISHED_…; the order is used to tell finished from live."""

    WAITING = auto()
    RUNNING = auto()
    PREEMPTED = auto()
    FINISHED_STOPPED = auto()
    FINISHED_LENGTH_CAPPED = auto()
    FINISHED_ABORTED = auto()
    FINISHED_IGNORED = auto()

    @property
    def is_finished(self) -> bool:
        return self >= EngineRequestStatus.FINISHED_STOPPED

    @property
    def finish_reason(self) -> FinishReason | None:
        """FINISHED_IGNORED is a request that could never run: an error."""
        return _FINISH_REASONS.get(self)


_FINISH_REASONS = {
    EngineRequestStatus.FINISHED_STOPPED: FinishReason.STOP,
    EngineRequestStatus.FINISHED_LENGTH_CAPPED: FinishReason.LENGTH,
    EngineRequestStatus.FINISHED_ABORTED: FinishReason.ABORT,
    EngineRequestStatus.FINISHED_IGNORED: FinishReason.ERROR,
}


@dataclass(slots=True, eq=False)
class EngineRequest:
    """One prompt to complete once, and the scheduler's state of it.

    `eos_token_id` is the token, or the tokens, that end the text. `sample_index` tells apart the `n` samples of one
    prompt (each is a request of its own). `arrival_time` is kept for whoever measures; nothing is decided by it.
    `num_computed_tokens` counts the tokens whose keys and values are in the cache, `num_cached_tokens` those of them
    that a prefix hit gave for free when the request first ran. `output_token_ids` are the tokens generated so far.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    eos_token_id: int | list[int] | None = None
    client_index: int = 0
    arrival_time: float | None = None
    priority: int = 0
    cache_salt: str | None = None
    sample_index: int = 0

    status: EngineRequestStatus = field(default=EngineRequestStatus.WAITING, init=False)
    num_computed_tokens: int = field(default=0, init=False)
    num_cached_tokens: int = field(default=0, init=False)
    output_token_ids: list[int] = field(default_factory=list, init=False)
    stop_reason: int | str | None = field(default=None, init=False)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)
