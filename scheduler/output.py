"""What crosses between the scheduler, the runner and the caller in one step."""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler.request import FinishReason
from scheduler.sampling import SamplingParams

PageIds = tuple[list[int], ...]
"""Page ids of one request, a list for each cache group; entry i holds tokens [i * page_size, (i + 1) * page_size)."""


@dataclass(slots=True)
class NewRequestData:
    """A request that the runner sees for the first time.

    `stop_token_ids` are all tokens that can end it. `page_ids` are all its pages so far (0, the null page, where no
    later token can see the page's tokens), and `num_computed_tokens` counts the tokens whose keys and values those
    pages already hold (a prefix hit).
    """

    req_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    page_ids: PageIds
    num_computed_tokens: int
    sample_index: int = 0
    stop_token_ids: list[int] = field(default_factory=list)


@dataclass(slots=True)
class CachedRequestData:
    """Requests that the runner knows already, as parallel lists.

    `new_page_ids[i]` is appended to request i's pages, or replaces them where `resumed_from_preemption[i]`.
    `new_token_ids[i]` is empty for a running request (the runner sampled its tokens itself) and holds every token
    (prompt and output) of a resumed one, which the runner dropped when it was preempted.
    """

    req_ids: list[str] = field(default_factory=list)
    resumed_from_preemption: list[bool] = field(default_factory=list)
    new_token_ids: list[list[int]] = field(default_factory=list)
    new_page_ids: list[PageIds] = field(default_factory=list)
    num_computed_tokens: list[int] = field(default_factory=list)

    @property
    def num_reqs(self) -> int:
        return len(self.req_ids)


@dataclass(slots=True)
class SchedulerOutput:
    """One step: which requests compute how many tokens, and what the runner must know to do it.

    `num_scheduled_tokens` lists the requests in the order of the batch. `scheduled_spec_decode_tokens` holds the
    draft tokens among them. `finished_req_ids` and `preempted_req_ids` are requests whose state the runner drops
    before the step. `num_common_prefix_pages` is, for each cache group, the number of leading pages that all
    scheduled requests share. `step` numbers the steps of a scheduler.

    A page that one request fills in a step may be read by another in the same step: in each layer the runner writes
    the keys and values of the whole batch before any attention reads them. Page ids are to be read, not changed.
    """

    scheduled_new_reqs: list[NewRequestData]
    scheduled_cached_reqs: CachedRequestData
    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int
    scheduled_spec_decode_tokens: dict[str, list[int]]
    num_common_prefix_pages: list[int]
    finished_req_ids: set[str]
    preempted_req_ids: set[str]
    step: int = 0


@dataclass(slots=True)
class TokenLogprobs:
    """Log-probability and rank (1 is the likeliest) of one token, and of the K likeliest, as parallel lists."""

    token_id: int
    logprob: float
    rank: int
    top_token_ids: list[int] = field(default_factory=list)
    top_logprobs: list[float] = field(default_factory=list)


@dataclass(slots=True)
class ModelRunnerOutput:
    """What one step sampled: `sampled_token_ids[i]` are request i's new tokens, empty while it is in prefill.

    `logprobs[i]` are parallel to them, empty for a request that asked for none. `prompt_logprobs_dict` holds the
    requests whose prompt positions were scored in this step: the log-probabilities of the prompt tokens that follow
    the positions computed. `errors` says of requests that cannot go on why.
    """

    req_ids: list[str]
    req_id_to_index: dict[str, int]
    sampled_token_ids: list[list[int]]
    spec_token_ids: list[list[int]] | None = None
    logprobs: list[list[TokenLogprobs]] | None = None
    prompt_logprobs_dict: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class EngineCoreOutput:
    """What one request gained in one step. `finish_reason` is set on its last output only.

    `stop_reason` is the stop token id that ended it, None for an end-of-sequence token. `error` says why a request
    ended with FinishReason.ERROR.
    """

    request_id: str
    new_token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_cached_tokens: int = 0
    new_logprobs: list[TokenLogprobs] | None = None
    new_prompt_logprobs: list[TokenLogprobs] | None = None
    error: str | None = None


@dataclass(slots=True)
class EngineCoreOutputs:
    """One client's outputs of one step, and with `include_finished_set` the ids of its requests that ended."""

    outputs: list[EngineCoreOutput]
    finished_requests: set[str] | None = None
