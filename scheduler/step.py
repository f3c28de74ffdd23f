"""One step while it is put together."""

from __future__ import annotations

from scheduler.output import CachedRequestData, NewRequestData, PageIds, SchedulerOutput
from scheduler.request import EngineRequest


class Step:
    """Collects the requests of a step within its token budget, of which `budget` is left.

    Where `expect_samples`, the next step may be scheduled before this one's tokens are known: a placeholder stands
    for the token that a request samples in it.
    """

    def __init__(self, number: int, budget: int, expect_samples: bool) -> None:
        self.budget = budget
        self.preempted_ids: set[str] = set()
        self._number = number
        self._total = budget
        self._expect_samples = expect_samples
        self._cached: list[EngineRequest] = []  # the running ones, then those resumed
        self._resumed: list[EngineRequest] = []
        self._new: list[EngineRequest] = []
        self._cached_page_ids: list[PageIds] = []
        self._new_page_ids: list[PageIds] = []
        self._cached_counts: list[int] = []
        self._new_counts: list[int] = []

    def add_running(self, request: EngineRequest, num_new_tokens: int, page_ids: PageIds) -> None:
        self.budget -= num_new_tokens
        self._cached.append(request)
        self._cached_page_ids.append(page_ids)
        self._cached_counts.append(num_new_tokens)

    def add_resumed(self, request: EngineRequest, num_new_tokens: int, page_ids: PageIds) -> None:
        """`page_ids` are all its pages; no running request may be added after it."""
        self.add_running(request, num_new_tokens, page_ids)
        self._resumed.append(request)

    def add_new(self, request: EngineRequest, num_new_tokens: int, page_ids: PageIds) -> None:
        self.budget -= num_new_tokens
        self._new.append(request)
        self._new_page_ids.append(page_ids)
        self._new_counts.append(num_new_tokens)

    def finish(self, finished_ids: set[str]) -> SchedulerOutput:
        """The step as the runner gets it. Its tokens count as computed: what is scheduled later is computed later."""
        output = SchedulerOutput(
            scheduled_new_reqs=self._new_data(),
            scheduled_cached_reqs=self._cached_data(),
            num_scheduled_tokens={},
            total_num_scheduled_tokens=self._total - self.budget,
            scheduled_spec_decode_tokens={},
            num_common_prefix_pages=[],
            finished_req_ids=finished_ids,
            preempted_req_ids=self.preempted_ids,
            step=self._number,
        )
        self._advance(output, self._cached, self._cached_counts)
        self._advance(output, self._new, self._new_counts)
        return output

    def _new_data(self) -> list[NewRequestData]:
        return [
            NewRequestData(
                req_id=request.request_id,
                prompt_token_ids=request.prompt_token_ids,
                sampling_params=request.sampling_params,
                page_ids=page_ids,
                num_computed_tokens=request.num_computed_tokens,
                sample_index=request.sample_index,
                stop_token_ids=sorted(request.stop_ids),
            )
            for request, page_ids in zip(self._new, self._new_page_ids, strict=True)
        ]

    def _cached_data(self) -> CachedRequestData:
        num_running = len(self._cached) - len(self._resumed)
        new_token_ids: list[list[int]] = [[] for _ in range(num_running)]
        new_token_ids += [request.token_ids(0, request.num_tokens) for request in self._resumed]
        return CachedRequestData(
            req_ids=[request.request_id for request in self._cached],
            resumed_from_preemption=[False] * num_running + [True] * len(self._resumed),
            new_token_ids=new_token_ids,
            new_page_ids=self._cached_page_ids,
            num_computed_tokens=[request.num_computed_tokens for request in self._cached],
        )

    def _advance(self, output: SchedulerOutput, requests: list[EngineRequest], counts: list[int]) -> None:
        for request, count in zip(requests, counts, strict=True):
            output.num_scheduled_tokens[request.request_id] = count
            request.last_step = self._number
            request.num_computed_tokens += count
            if request.draft_token_ids:
                self._take_drafts(output, request)
            if self._expect_samples and request.num_computed_tokens >= request.num_tokens + request.num_placeholders:
                request.num_placeholders += 1

    def _take_drafts(self, output: SchedulerOutput, request: EngineRequest) -> None:
        num_drafts = request.num_computed_tokens - request.num_tokens
        if num_drafts > 0:
            output.scheduled_spec_decode_tokens[request.request_id] = request.draft_token_ids[:num_drafts]
        request.draft_token_ids = []  # those left out would be stale in the next step
