"""One step while it is put together."""

from __future__ import annotations

from scheduler.output import CachedRequestData, NewRequestData, PageIds, SchedulerOutput
from scheduler.request import EngineRequest


class Step:
    """Collects the requests of a step within its token budget, of which `budget` is left.

    With `expect_samples` the next step may be scheduled before this one's tokens are known: a placeholder stands for
    the token that a request samples in it.
    """

    __slots__ = ("_cached", "_expect_samples", "_num_scheduled", "budget", "output")

    def __init__(self, number: int, budget: int, finished_req_ids: set[str], expect_samples: bool) -> None:
        self.budget = budget
        self._cached = CachedRequestData()
        self._num_scheduled: dict[str, int] = {}
        self._expect_samples = expect_samples
        self.output = SchedulerOutput(
            scheduled_new_reqs=[],
            scheduled_cached_reqs=self._cached,
            num_scheduled_tokens=self._num_scheduled,
            total_num_scheduled_tokens=0,
            scheduled_spec_decode_tokens={},
            num_common_prefix_pages=[],
            finished_req_ids=finished_req_ids,
            preempted_req_ids=set(),
            step=number,
        )

    def add_new(self, request: EngineRequest, num_new_tokens: int, page_ids: PageIds) -> None:
        self.output.scheduled_new_reqs.append(
            NewRequestData(
                req_id=request.request_id,
                prompt_token_ids=request.prompt_token_ids,
                sampling_params=request.sampling_params,
                page_ids=page_ids,
                num_computed_tokens=request.num_computed_tokens,
                sample_index=request.sample_index,
            )
        )
        self._compute(request, num_new_tokens)

    def add_resumed(self, request: EngineRequest, num_new_tokens: int, page_ids: PageIds) -> None:
        self._add_cached(request, page_ids, request.token_ids(0, request.num_tokens), resumed=True)
        self._compute(request, num_new_tokens)

    def add_running(self, request: EngineRequest, num_new_tokens: int, page_ids: PageIds) -> None:
        self._add_cached(request, page_ids, [], resumed=False)
        self._compute(request, num_new_tokens)

    def _add_cached(self, request: EngineRequest, page_ids: PageIds, token_ids: list[int], resumed: bool) -> None:
        cached = self._cached
        cached.req_ids.append(request.request_id)
        cached.resumed_from_preemption.append(resumed)
        cached.new_token_ids.append(token_ids)
        cached.new_page_ids.append(page_ids)
        cached.num_computed_tokens.append(request.num_computed_tokens)

    def _compute(self, request: EngineRequest, num_new_tokens: int) -> None:
        """Count the tokens as computed: whatever is scheduled later is computed later."""
        self.budget -= num_new_tokens
        self.output.total_num_scheduled_tokens += num_new_tokens
        self._num_scheduled[request.request_id] = num_new_tokens
        request.last_step = self.output.step
        request.num_computed_tokens += num_new_tokens
        num_past = request.num_computed_tokens - request.num_tokens - request.num_placeholders
        if request.draft_token_ids:
            if num_past > 0:
                drafts = request.draft_token_ids[:num_past]
                self.output.scheduled_spec_decode_tokens[request.request_id] = drafts
            request.draft_token_ids = []
        if num_past >= 0 and self._expect_samples:
            request.num_placeholders += 1
