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
    prompt (each is a request of its own). `num_computed_tokens` counts the tokens whose keys and values are in the
    cache once the steps scheduled so far have run, `num_cached_tokens` those of them that a prefix hit gave for free
    when the request first ran. `output_token_ids` are the tokens generated so far.

    The rest is the scheduler's own. `max_num_tokens` is the length, prompt and output, at which the request ends.
    `draft_token_ids` are guesses to verify in the next step, `num_placeholders` sampled tokens that are still on the
    device. Only outputs of steps from `first_step` on count: what an earlier step (before a preemption, or of an
    earlier request with this id) samples is void; `last_step` is the last that computes tokens of the request.
    `page_digests` name its full pages and `num_allocated_tokens` is what its pages have room for.
    `num_scored_tokens` counts the prompt log-probabilities computed since it last began, `num_reported_tokens` those
    handed out.
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

    max_num_tokens: int = field(default=0, init=False)
    draft_token_ids: list[int] = field(default_factory=list, init=False)
    num_placeholders: int = field(default=0, init=False)
    first_step: int = field(default=0, init=False)
    last_step: int = field(default=0, init=False)
    page_digests: list[bytes] = field(default_factory=list, init=False)
    num_allocated_tokens: int = field(default=0, init=False)
    num_scored_tokens: int = field(default=0, init=False)
    num_reported_tokens: int = field(default=0, init=False)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    def token_ids(self, start: int, stop: int) -> list[int]:
        """Prompt and output tokens at positions `start` to before `stop`."""
        split = len(self.prompt_token_ids)
        if stop <= split:
            return self.prompt_token_ids[start:stop]
        if start >= split:
            return self.output_token_ids[start - split : stop - split]
        return self.prompt_token_ids[start:] + self.output_token_ids[: stop - split]

    def ending(self, token_id: int) -> EngineRequestStatus | None:
        """How the request ends with `token_id`, its newest output token; None where it goes on.

        Before `min_tokens` only the length ends it. `ignore_eos` is about the model's own stop tokens: what the user
        listed in `stop_token_ids` still stops.
        """
        params = self.sampling_params
        if len(self.output_token_ids) >= params.min_tokens:
            if not params.ignore_eos and self._is_eos(token_id):
                return EngineRequestStatus.FINISHED_STOPPED
            if token_id in params.stop_token_ids:
                self.stop_reason = token_id
                return EngineRequestStatus.FINISHED_STOPPED
        if len(self.prompt_token_ids) + len(self.output_token_ids) >= self.max_num_tokens:
            return EngineRequestStatus.FINISHED_LENGTH_CAPPED
        return None

    def _is_eos(self, token_id: int) -> bool:
        eos = self.eos_token_id
        return token_id in eos if isinstance(eos, list) else token_id == eos
