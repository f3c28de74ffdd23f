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
        """FINISHED_IGNORED is a request that could never run, or not go on: an error."""
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
    prompt (each is a request of its own). A smaller `priority` is more urgent; `arrival_time`, on a clock of the
    caller's, breaks ties. `num_computed_tokens` counts the tokens whose keys and values are in the
    cache once the steps scheduled so far have run, `num_cached_tokens` those of them that a prefix hit gave for free
    when the request first ran. `output_token_ids` are the tokens generated so far.

    The rest is the scheduler's own. `order` counts the requests added before it. `num_tokens` counts prompt and
    output, and at `max_num_tokens` the request ends; `stop_ids` are the tokens that can end it, known once it runs.
    `draft_token_ids` are guesses to verify in the next step, `num_placeholders` counts sampled tokens that are still
    on the device. Outputs of steps before `first_step` are void (the request was preempted since, or an earlier one
    had its id); `last_step` is the last that computes tokens of it. `page_digests` name its full pages; up to
    `num_settled_tokens` no page need be taken for it, nor dropped. `num_scored_tokens` counts the prompt
    log-probabilities computed since it last began, `num_reported_tokens` those handed out.
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

    order: int = field(default=0, init=False)
    num_tokens: int = field(default=0, init=False)
    max_num_tokens: int = field(default=0, init=False)
    stop_ids: frozenset[int] = field(default=frozenset(), init=False)
    draft_token_ids: list[int] = field(default_factory=list, init=False)
    num_placeholders: int = field(default=0, init=False)
    first_step: int = field(default=0, init=False)
    last_step: int = field(default=0, init=False)
    page_digests: list[bytes] = field(default_factory=list, init=False)
    num_settled_tokens: int = field(default=0, init=False)
    num_scored_tokens: int = field(default=0, init=False)
    num_reported_tokens: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.num_tokens = len(self.prompt_token_ids)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    def token_ids(self, start: int, stop: int) -> list[int]:
        """Prompt and output tokens at positions `start` to before `stop`."""
        split = len(self.prompt_token_ids)
        if stop <= split:
            return self.prompt_token_ids[start:stop]
        if start >= split:
            return self.output_token_ids[start - split : stop - split]
        return self.prompt_token_ids[start:] + self.output_token_ids[: stop - split]

    def find_stop_ids(self) -> None:
        """Gather the tokens that can end the request. `ignore_eos` is about the model's own: those that the user
        listed in `stop_token_ids` still stop.
        """
        params, eos = self.sampling_params, self.eos_token_id
        own = [] if params.ignore_eos or eos is None else eos if isinstance(eos, list) else [eos]
        self.stop_ids = frozenset((*own, *params.stop_token_ids))

    def append(self, token_ids: list[int]) -> EngineRequestStatus | None:
        """Take sampled tokens up to one that ends the request, and say how it ends; None where it goes on."""
        for token_id in token_ids:
            self.output_token_ids.append(token_id)
            self.num_tokens += 1
            if token_id in self.stop_ids or self.num_tokens >= self.max_num_tokens:
                ending = self._ending(token_id)
                if ending is not None:
                    return ending
        return None

    def _ending(self, token_id: int) -> EngineRequestStatus | None:
        """Before `min_tokens` only the length ends a request."""
        if token_id in self.stop_ids and len(self.output_token_ids) >= self.sampling_params.min_tokens:
            if not self._is_eos(token_id):
                self.stop_reason = token_id
            return EngineRequestStatus.FINISHED_STOPPED
        if self.num_tokens >= self.max_num_tokens:
            return EngineRequestStatus.FINISHED_LENGTH_CAPPED
        return None

    def _is_eos(self, token_id: int) -> bool:
        eos = self.eos_token_id
        return not self.sampling_params.ignore_eos and (token_id in eos if isinstance(eos, list) else token_id == eos)
