"""What each step computes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from scheduler.cache.manager import CacheManager
from scheduler.cache.specs import CacheGroupsConfig
from scheduler.config import CacheConfig, Config, SchedulerConfig, SchedulingPolicy, SpeculativeConfig
from scheduler.events import Event, EventKind, EventLog
from scheduler.interface import SchedulerInterface
from scheduler.limits import Limits
from scheduler.offline import LengthForecast
from scheduler.output import (
    EngineCoreOutput,
    EngineCoreOutputs,
    ModelRunnerOutput,
    PageIds,
    SchedulerOutput,
    TokenLogprobs,
)
from scheduler.request import EngineRequest, EngineRequestStatus, FinishReason
from scheduler.request_queue import make_queue, urgency
from scheduler.stats import SchedulerStats
from scheduler.step import Step

if TYPE_CHECKING:
    from runner import eSurgeRunner


_RUNNING = EngineRequestStatus.RUNNING  # looked up once: reaching an enum's member is slow in the loops over requests


class Scheduler(SchedulerInterface):
    """Continuous batching over a paged cache.

    There is no prefill and no decode phase: a request has tokens (prompt, output, drafts) and a number of them that
    are computed, and every step moves the second toward the first. Requests that run are served first, in the order
    in which they began; where pages run out, the last of them is preempted: it loses its pages, waits before all
    others, and is computed anew. So the first always goes on, until it ends.
    """

    def __init__(
        self,
        config: Config,
        kv_cache_config: CacheGroupsConfig,
        include_finished_set: bool = False,
        max_num_seq_buckets: list[int] | None = None,
    ) -> None:
        """With `include_finished_set` each client is told the ids of its requests that ended.

        `max_num_seq_buckets` takes the place of the config's. Raises ValueError where `config` and the groups do not
        go together.
        """
        limits = self._config = config.scheduler_config
        buckets = max_num_seq_buckets or limits.max_num_seq_buckets or [limits.max_num_seqs]
        self._max_num_seqs = min(limits.max_num_seqs, max(buckets))
        self._forecast = LengthForecast() if limits.policy is SchedulingPolicy.OFFLINE else None
        self._cache = CacheManager(
            config.cache_config,
            kv_cache_config,
            max_num_seqs=self._max_num_seqs,
            max_chunk=limits.max_chunk,
            horizon=self._horizon,
        )
        self._limits = Limits(config, self._cache)

        self._requests: dict[str, EngineRequest] = {}
        self._running: dict[str, EngineRequest] = {}  # the last is the first to be preempted
        self._waiting = make_queue(SchedulingPolicy(limits.policy), self._cache.page_size, self._cache.find_hit)
        self._errors: dict[str, str] = {}
        self._finished_ids: set[str] = set()
        self._finished_by_client: dict[int, set[str]] | None = defaultdict(set) if include_finished_set else None
        self._num_steps = 0
        self._num_added = 0
        self._stats = SchedulerStats(num_pages=self._cache.pool.num_usable)
        self._events = EventLog(limits.record_events)

    @classmethod
    def from_runner(
        cls,
        runner: eSurgeRunner,
        max_num_batched_tokens: int | None = None,
        enable_prefix_caching: bool = True,
        include_finished_set: bool = False,
        num_speculative_tokens: int = 0,
        **options: Any,
    ) -> Scheduler:
        """A scheduler for the runner's cache groups and limits; `options` are further fields of SchedulerConfig.

        The default budget of a step is the runner's `max_model_len`.
        """
        scheduler_config = SchedulerConfig(
            max_num_seqs=runner.max_num_seqs,
            max_num_batched_tokens=runner.max_model_len if max_num_batched_tokens is None else max_num_batched_tokens,
            max_model_len=runner.max_model_len,
            **options,
        )
        cache_config = CacheConfig(runner.num_pages, runner.page_size, enable_prefix_caching)
        config = Config(scheduler_config, cache_config, SpeculativeConfig(num_speculative_tokens))
        return cls(config, runner.cache_groups, include_finished_set)

    # The loop

    def schedule(self) -> SchedulerOutput:
        step = self._begin_step()
        self._schedule_running(step)
        if not step.preempted_ids:
            self._schedule_waiting(step)
        return self._end_step(step)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        outputs: dict[int, list[EngineCoreOutput]] = defaultdict(list)
        for request_id in scheduler_output.num_scheduled_tokens:
            request = self._requests.get(request_id)
            if request is None or scheduler_output.step < request.first_step:
                continue  # it ended, or was preempted and begun anew, while the step ran
            output = self._update_request(request, scheduler_output, model_runner_output)
            if output is not None:
                outputs[request.client_index].append(output)
        self._report_errors(outputs)
        return self._for_clients(outputs)

    # Requests come and go

    def add_request(self, request: EngineRequest) -> None:
        if request.request_id in self._requests:
            raise ValueError(f"there is a request {request.request_id!r} already")
        self._requests[request.request_id] = request
        longest = request.num_prompt_tokens + max(request.sampling_params.max_tokens, 1)
        request.max_num_tokens = min(longest, self._limits.max_num_tokens)
        request.first_step = self._num_steps + 1
        request.order = self._num_added
        self._num_added += 1
        self._events.record(request.request_id, EventKind.QUEUED)
        error = self._limits.why_never(request)
        if error is None:
            self._waiting.push(request)
        else:
            request.status = EngineRequestStatus.FINISHED_IGNORED
            self._errors[request.request_id] = error

    def finish_requests(self, request_ids: str | Iterable[str], finished_status: EngineRequestStatus) -> None:
        if not finished_status.is_finished:
            raise ValueError(f"{finished_status.name} is not a status to end with")
        for request_id in [request_ids] if isinstance(request_ids, str) else request_ids:
            request = self._requests.get(request_id)
            if request is not None and not request.status.is_finished:
                self._finish(request, finished_status)

    def get_request_counts(self) -> tuple[int, int]:
        return len(self._running), len(self._waiting)

    def get_num_unfinished_requests(self) -> int:
        return len(self._requests)

    def has_finished_requests(self) -> bool:
        return bool(self._finished_ids)

    def reset_prefix_cache(self) -> bool:
        return self._cache.reset()

    def get_stats(self) -> SchedulerStats:
        """Where things stand now, and totals since the start."""
        num_running, num_waiting = self.get_request_counts()
        num_used = self._cache.pool.num_usable - self._cache.pool.num_free
        return replace(self._stats, num_running=num_running, num_waiting=num_waiting, num_used_pages=num_used)

    def take_events(self) -> list[Event]:
        """The events since the last call; none unless the config says `record_events`."""
        return self._events.take()

    def shutdown(self) -> None:
        self.finish_requests(list(self._requests), EngineRequestStatus.FINISHED_ABORTED)
        self._requests.clear()
        self._errors.clear()

    # The parts of `schedule`

    def _begin_step(self) -> Step:
        self._num_steps += 1
        return Step(self._num_steps, self._config.max_num_batched_tokens, self._config.async_scheduling)

    def _schedule_running(self, step: Step) -> None:
        for request in list(self._running.values()):
            if step.budget == 0 or request.status is not _RUNNING:
                break  # it was preempted for one before it, and so were all after it
            num_new_tokens = self._limits.next_chunk(request, step.budget)
            if num_new_tokens <= 0:
                continue
            page_ids: PageIds | None = self._cache.no_pages
            if request.num_computed_tokens + num_new_tokens > request.num_settled_tokens:
                page_ids = self._make_room(request, num_new_tokens, step)
            if page_ids is None:
                break
            step.add_running(request, num_new_tokens, page_ids)

    def _schedule_waiting(self, step: Step) -> None:
        num_running = len(self._running)
        while self._waiting and step.budget > 0 and len(self._running) < self._max_num_seqs:
            request = self._waiting.peek()
            num_hit_tokens = self._cache.find_hit(request)
            num_new_tokens = self._limits.first_chunk(request, num_hit_tokens, step.budget)
            if num_new_tokens == 0:
                break
            page_ids = self._cache.admit(request, num_hit_tokens, num_new_tokens, self._headroom(request))
            if page_ids is None:
                break
            self._waiting.remove(request)
            self._begin(request, num_hit_tokens, num_new_tokens, page_ids, step)
        if self._config.policy is SchedulingPolicy.PRIORITY and len(self._running) > num_running:
            self._running = dict(sorted(self._running.items(), key=lambda item: urgency(item[1])))

    def _end_step(self, step: Step) -> SchedulerOutput:
        finished_ids, self._finished_ids = self._finished_ids, set()
        output = step.finish(finished_ids)
        output.num_common_prefix_pages = self._cache.num_common_prefix_pages(output.num_scheduled_tokens)
        return output

    # A request's life

    def _horizon(self, request: EngineRequest) -> int:
        """The tokens for which a request must find pages before it begins: those it has, or offline, all it will."""
        return request.num_tokens if self._forecast is None else self._forecast.length(request)

    def _headroom(self, request: EngineRequest) -> int:
        """The pages a group to leave free. One that was preempted comes back only where every running request has a
        page to go on with, so that it is not preempted again before each has computed a page of tokens.
        """
        return len(self._running) if request.status is EngineRequestStatus.PREEMPTED else 0

    def _begin(
        self, request: EngineRequest, num_hit_tokens: int, num_new_tokens: int, page_ids: PageIds, step: Step
    ) -> None:
        resumed = request.status is EngineRequestStatus.PREEMPTED
        request.status = EngineRequestStatus.RUNNING
        request.first_step = self._num_steps
        request.num_computed_tokens = num_hit_tokens
        request.find_stop_ids()
        self._events.record(request.request_id, EventKind.SCHEDULED)
        self._running[request.request_id] = request
        if resumed:
            step.add_resumed(request, num_new_tokens, page_ids)
        else:
            request.num_cached_tokens = num_hit_tokens
            self._stats.num_prompt_tokens += request.num_prompt_tokens
            self._stats.num_cached_tokens += num_hit_tokens
            step.add_new(request, num_new_tokens, page_ids)

    def _make_room(self, request: EngineRequest, num_new_tokens: int, step: Step) -> PageIds | None:
        """New pages for a running request, for which the last of the running are preempted; None if it was one."""
        while (page_ids := self._cache.extend(request, num_new_tokens)) is None:
            last = next(reversed(self._running.values()))
            self._preempt(last)
            step.preempted_ids.add(last.request_id)
            if last is request:
                break
        return page_ids

    def _preempt(self, request: EngineRequest) -> None:
        del self._running[request.request_id]
        self._cache.release(request)
        self._stats.num_preemptions += 1
        self._stats.num_recomputed_tokens += request.num_computed_tokens
        self._events.record(request.request_id, EventKind.PREEMPTED)
        request.status = EngineRequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_placeholders = 0
        request.num_scored_tokens = 0
        request.draft_token_ids = []
        self._waiting.push_preempted(request)

    def _finish(self, request: EngineRequest, status: EngineRequestStatus) -> None:
        if request.status is _RUNNING:
            del self._running[request.request_id]
            self._cache.release(request)
        else:
            self._waiting.remove(request)
        request.status = status
        self._forget(request)

    def _forget(self, request: EngineRequest) -> None:
        del self._requests[request.request_id]
        self._finished_ids.add(request.request_id)
        self._events.record(request.request_id, EventKind.FINISHED)
        if self._finished_by_client is not None:
            self._finished_by_client[request.client_index].add(request.request_id)

    # The parts of `update_from_output`

    def _update_request(
        self, request: EngineRequest, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> EngineCoreOutput | None:
        error = model_runner_output.errors.get(request.request_id)
        if error is not None:
            self._finish(request, EngineRequestStatus.FINISHED_IGNORED)
            return EngineCoreOutput(request.request_id, [], FinishReason.ERROR, error=error)
        index = model_runner_output.req_id_to_index[request.request_id]
        token_ids = model_runner_output.sampled_token_ids[index]
        if scheduler_output.scheduled_spec_decode_tokens or request.num_placeholders:
            self._correct_progress(request, len(token_ids), scheduler_output)
        token_ids, ending = self._take_tokens(request, token_ids, scheduler_output.step)
        prompt_logprobs = None
        if model_runner_output.prompt_logprobs_dict:
            prompt_logprobs = _new_prompt_logprobs(request, model_runner_output)
        if ending is not None:
            self._finish(request, ending)
        elif model_runner_output.spec_token_ids is not None and request.status is _RUNNING:
            request.draft_token_ids = model_runner_output.spec_token_ids[index][: self._limits.max_drafts]
        if not token_ids and ending is None and prompt_logprobs is None:
            return None
        logprobs = model_runner_output.logprobs
        return EngineCoreOutput(
            request.request_id,
            token_ids,
            None if ending is None else ending.finish_reason,
            request.stop_reason,
            request.num_cached_tokens,
            None if logprobs is None else logprobs[index][: len(token_ids)],
            prompt_logprobs,
        )

    def _take_tokens(
        self, request: EngineRequest, token_ids: list[int], step: int
    ) -> tuple[list[int], EngineRequestStatus | None]:
        """Give a request what it sampled: the tokens that it took, and how it ended with them."""
        if request.sampling_params.max_tokens == 0:
            return [], _ending_of_scoring(request, step)
        num_tokens = request.num_tokens
        ending = request.append(token_ids)
        if self._events.is_on and num_tokens == request.num_prompt_tokens < request.num_tokens:
            self._events.record(request.request_id, EventKind.FIRST_TOKEN)
        if ending is None:
            return token_ids, None
        if self._forecast is not None:
            self._forecast.observe(request)
        return token_ids[: request.num_tokens - num_tokens], ending

    def _correct_progress(self, request: EngineRequest, num_sampled: int, scheduler_output: SchedulerOutput) -> None:
        """Take back the drafts that the step computed and rejected, and the placeholders of what it sampled."""
        if request.status is not _RUNNING:
            return  # it was preempted, and has no progress
        drafts = scheduler_output.scheduled_spec_decode_tokens.get(request.request_id)
        if drafts:
            request.num_computed_tokens -= len(drafts) + 1 - num_sampled
            self._stats.num_draft_tokens += len(drafts)
            self._stats.num_accepted_tokens += num_sampled - 1
        if request.num_placeholders:
            request.num_placeholders -= num_sampled

    def _report_errors(self, outputs: dict[int, list[EngineCoreOutput]]) -> None:
        for request_id, error in self._errors.items():
            request = self._requests[request_id]
            self._forget(request)
            outputs[request.client_index].append(EngineCoreOutput(request_id, [], FinishReason.ERROR, error=error))
        self._errors.clear()

    def _for_clients(self, outputs: dict[int, list[EngineCoreOutput]]) -> dict[int, EngineCoreOutputs]:
        by_client = {client: EngineCoreOutputs(its_outputs) for client, its_outputs in outputs.items()}
        if self._finished_by_client is not None:
            for client, finished_ids in self._finished_by_client.items():
                by_client.setdefault(client, EngineCoreOutputs([])).finished_requests = finished_ids
            self._finished_by_client = defaultdict(set)
        return by_client


def _ending_of_scoring(request: EngineRequest, step: int) -> EngineRequestStatus | None:
    """A request for no tokens ends with the step that computes the last of its prompt."""
    is_last = step == request.last_step and request.num_computed_tokens >= request.num_prompt_tokens
    return EngineRequestStatus.FINISHED_LENGTH_CAPPED if is_last else None


def _new_prompt_logprobs(request: EngineRequest, model_runner_output: ModelRunnerOutput) -> list[TokenLogprobs] | None:
    """The step's prompt log-probabilities, without those that were reported before a preemption."""
    scored = model_runner_output.prompt_logprobs_dict.get(request.request_id)
    if not scored or request.status is not _RUNNING:
        return None
    request.num_scored_tokens += len(scored)
    num_new = request.num_scored_tokens - request.num_reported_tokens
    if num_new <= 0:
        return None
    request.num_reported_tokens = request.num_scored_tokens
    return scored[-num_new:]
