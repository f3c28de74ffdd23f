"""Whatever is done to a scheduler, in whatever order, its rules hold."""

from __future__ import annotations

from collections import deque
from typing import Any

import hypothesis.strategies as st
from fake_runner import FakeRunner
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from rules import check_pages, check_promises, check_step, longest_request, whole_answer

from scheduler import (
    CacheConfig,
    CacheGroupsConfig,
    CacheGroupSpec,
    ChunkedLocalAttentionSpec,
    Config,
    EngineRequest,
    EngineRequestStatus,
    FinishReason,
    FullAttentionSpec,
    ModelRunnerOutput,
    SamplingParams,
    Scheduler,
    SchedulerConfig,
    SchedulerOutput,
    SlidingWindowSpec,
    SpeculativeConfig,
)
from scheduler.cache.specs import KVCacheSpec, RecurrentStateSpec
from scheduler.request_queue import urgency

VOCABULARY = 40
EOS = [0, 1]
STOP = 2


def often(usual: Any, rare: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Three times in four the usual."""
    return st.integers(0, 3).flatmap(lambda draw: st.just(usual) if draw else rare)


@st.composite
def group_mixes(draw: st.DrawFn, page_size: int) -> list[KVCacheSpec]:
    shape = (page_size, 1, 8, "float32")
    kinds = st.one_of(
        st.just(FullAttentionSpec(*shape)),
        st.integers(1, 12).map(lambda window: SlidingWindowSpec(*shape, window)),
        st.integers(1, 12).map(lambda chunk: ChunkedLocalAttentionSpec(*shape, chunk)),
    )
    specs: list[KVCacheSpec] = draw(st.lists(kinds, min_size=1, max_size=3))
    return draw(often(specs, st.just([RecurrentStateSpec(64), *specs]) | st.just([RecurrentStateSpec(64)])))


@st.composite
def scheduler_configs(draw: st.DrawFn) -> SchedulerConfig:
    chunked = draw(often(True, st.just(False)))
    return SchedulerConfig(
        max_num_seqs=draw(st.integers(2, 6)),
        max_num_batched_tokens=draw(often(24, st.integers(1, 60))),
        max_model_len=draw(often(48, st.integers(8, 64))),
        policy=draw(st.sampled_from(["fcfs", "priority", "offline"])),
        long_prefill_token_threshold=draw(often(None, st.integers(1, 10))) if chunked else None,
        chunked_prefill_enabled=chunked,
        async_scheduling=draw(st.booleans()),
    )


sampling_params = st.builds(
    SamplingParams,
    max_tokens=often(16, st.integers(0, 24)),
    min_tokens=often(0, st.integers(0, 6)),
    ignore_eos=st.booleans(),
    stop_token_ids=st.sampled_from([[], [STOP]]),
)
# Prompts share beginnings with each other, and some repeat themselves.
TEXT = [3, 4, 5, 6, 7, 8, 9, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9]
prompts = st.tuples(st.integers(0, len(TEXT)), st.lists(st.sampled_from([5, 6]), min_size=1, max_size=6)).map(
    lambda parts: TEXT[: parts[0]] + parts[1]
) | st.integers(1, 40).map(lambda length: [7] * length)
rows = st.lists(
    st.tuples(prompts, sampling_params, st.integers(0, 2), often(None, st.just("salt"))), min_size=1, max_size=6
)


class SchedulerMachine(RuleBasedStateMachine):
    num_steps = 0  # over all runs

    @initialize(data=st.data(), config=scheduler_configs(), page_size=st.integers(1, 4), num_tokens=st.integers(12, 90))
    def begin(self, data: st.DataObject, config: SchedulerConfig, page_size: int, num_tokens: int) -> None:
        self.specs = data.draw(group_mixes(page_size))
        num_pages = 2 + num_tokens // page_size
        has_state = any(isinstance(spec, RecurrentStateSpec) for spec in self.specs)
        num_drafts = 0 if config.async_scheduling or has_state else data.draw(st.integers(0, 3))
        caching = data.draw(often(True, st.just(False)))
        groups = CacheGroupsConfig(num_pages, [CacheGroupSpec(spec) for spec in self.specs])
        self.config = config
        self.scheduler = Scheduler(
            Config(config, CacheConfig(num_pages, page_size, caching), SpeculativeConfig(num_drafts)), groups
        )
        self.runner = FakeRunner(groups, page_size, VOCABULARY, draft_length=num_drafts)
        self.limit = longest_request(self.specs, page_size, num_pages, config.max_model_len)
        self.in_flight: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = deque()
        self.live: dict[str, EngineRequest] = {}
        self.told: dict[str, list[int]] = {}  # the tokens reported so far
        self.begun: set[str] = set()  # as the runner knows
        self.preempted: set[str] = set()
        self.newly_finished: set[str] = set()
        self.num_added = 0

    # Moves

    @rule(rows=rows)
    def add(self, rows: list[tuple[list[int], SamplingParams, int, str | None]]) -> None:
        for prompt, params, priority, salt in rows:
            request = EngineRequest(
                f"r{self.num_added}", prompt, params, eos_token_id=EOS, priority=priority, cache_salt=salt
            )
            self.num_added += 1
            self.scheduler.add_request(request)
            self.live[request.request_id] = request
            self.told[request.request_id] = []

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def add_duplicate(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.live)))
        try:
            self.scheduler.add_request(EngineRequest(request_id, [1], SamplingParams()))
        except ValueError:
            return
        raise AssertionError("two live requests of one id")

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """As many steps of the loop as hypothesis likes."""
        for _ in range(data.draw(st.integers(1, 6))):
            self.schedule()
            self.update_oldest()

    @precondition(lambda self: len(self.in_flight) < 3)
    @rule()
    def schedule(self) -> None:
        SchedulerMachine.num_steps += 1
        output = self.scheduler.schedule()
        self.check_output(output)
        self.in_flight.append((output, self.runner.run(output)))

    @precondition(lambda self: self.in_flight)
    @rule()
    def update_oldest(self) -> None:
        updates = self.scheduler.update_from_output(*self.in_flight.popleft())
        for output in [output for outputs in updates.values() for output in outputs.outputs]:
            request = self.live[output.request_id]
            told = self.told[output.request_id]
            told += output.new_token_ids
            assert told == request.output_token_ids
            assert output.num_cached_tokens == request.num_cached_tokens
            if output.finish_reason is not None:
                self.check_end(request, output.finish_reason, output.stop_reason)
                self.newly_finished.add(request.request_id)
                del self.live[request.request_id]

    @precondition(lambda self: self.live)
    @rule(data=st.data(), times=st.integers(1, 2))
    def finish(self, data: st.DataObject, times: int) -> None:
        ids = data.draw(st.sets(st.sampled_from(sorted(self.live)), min_size=1, max_size=3))
        for _ in range(times):  # a second time is of no consequence
            self.scheduler.finish_requests([*sorted(ids), "unknown"], EngineRequestStatus.FINISHED_ABORTED)
        for request_id in ids:
            request = self.live[request_id]
            if request.status is EngineRequestStatus.FINISHED_ABORTED:
                answer, _, _ = whole_answer(request, self.limit, VOCABULARY)
                assert request.output_token_ids == answer[: len(request.output_token_ids)]
                self.newly_finished.add(request_id)
                del self.live[request_id]
            else:
                assert request.status is EngineRequestStatus.FINISHED_IGNORED  # its error is still to be reported

    @rule()
    def reset_prefix_cache(self) -> None:
        running, _ = self.scheduler.get_request_counts()
        assert self.scheduler.reset_prefix_cache() == (running == 0)
        if running == 0:
            assert self.scheduler._cache.pool.num_cached == 0

    # Rules

    def check_output(self, output: SchedulerOutput) -> None:
        running, waiting = self.scheduler.get_request_counts()
        check_step(self.config, output.num_scheduled_tokens, output.total_num_scheduled_tokens, running)
        assert output.finished_req_ids == self.newly_finished
        self.begun -= output.finished_req_ids
        self.preempted -= output.finished_req_ids
        self.newly_finished = set()
        assert output.preempted_req_ids <= self.begun - self.preempted
        self.preempted |= output.preempted_req_ids

        new = [data.req_id for data in output.scheduled_new_reqs]
        cached = output.scheduled_cached_reqs
        resumed = [cached.req_ids[i] for i, is_resumed in enumerate(cached.resumed_from_preemption) if is_resumed]
        assert self.begun.isdisjoint(new)
        assert self.preempted.issuperset(resumed)
        assert set(cached.req_ids) - set(resumed) <= self.begun - self.preempted
        assert sorted([*new, *cached.req_ids]) == sorted(output.num_scheduled_tokens)
        assert not (output.preempted_req_ids and (new or resumed)), "room for new ones, at the cost of others"
        self.begun.update(new)
        self.preempted -= set(resumed)
        assert running + waiting + len(self.scheduler._errors) == len(self.live)
        assert self.scheduler.get_num_unfinished_requests() == len(self.live)
        self.check_order([*new, *resumed], output.preempted_req_ids)
        self.check_first_chunks(output)
        assert output.num_scheduled_tokens or waiting + running == 0 or self.in_flight, "nobody makes progress"

    def check_order(self, begun: list[str], preempted: set[str]) -> None:
        waiting = [
            r for r in self.live.values() if r.status in (EngineRequestStatus.WAITING, EngineRequestStatus.PREEMPTED)
        ]
        running = [r for r in self.live.values() if r.status is EngineRequestStatus.RUNNING]
        if self.config.policy == "priority":
            least = max((urgency(self.live[request_id]) for request_id in begun), default=(0,))
            assert all(urgency(request) > least for request in waiting if begun)
            assert all(urgency(self.live[gone]) > urgency(request) for gone in preempted for request in running)
        if self.config.policy == "fcfs":
            order = [request.order for request in running]
            assert all(request.order > max(order, default=-1) for request in waiting), "overtaken"

    def check_first_chunks(self, output: SchedulerOutput) -> None:
        for data in output.scheduled_new_reqs:
            assert data.num_computed_tokens < len(data.prompt_token_ids)
            if not self.config.chunked_prefill_enabled:
                whole = len(data.prompt_token_ids) - data.num_computed_tokens
                assert output.num_scheduled_tokens[data.req_id] == whole

    def check_end(self, request: EngineRequest, reason: FinishReason, stop_reason: int | str | None) -> None:
        if reason is FinishReason.ERROR:
            too_long = request.num_prompt_tokens >= self.limit
            undivided = not self.config.chunked_prefill_enabled
            assert too_long or (undivided and request.num_prompt_tokens > self.longest_undivided())
            assert request.output_token_ids == []
            return
        assert (request.output_token_ids, reason, stop_reason) == whole_answer(request, self.limit, VOCABULARY)

    def longest_undivided(self) -> int:
        num_paged = sum(not isinstance(spec, RecurrentStateSpec) for spec in self.specs)
        pages = self.scheduler._cache.pool.num_usable // max(num_paged, 1)
        in_pool = pages * self.scheduler._cache.page_size if num_paged else self.config.max_num_batched_tokens
        return min(self.config.max_num_batched_tokens, in_pool)

    @invariant()
    def pages_and_promises_add_up(self) -> None:
        if hasattr(self, "scheduler"):
            check_pages(self.scheduler)
            check_promises(self.scheduler)

    def teardown(self) -> None:
        """Every request ends, and every page comes back."""
        if not hasattr(self, "scheduler"):
            return
        tokens = sum(request.num_prompt_tokens + request.sampling_params.max_tokens for request in self.live.values())
        for _ in range(10 * tokens + 10):
            if not self.live:
                break
            self.schedule()
            while self.in_flight:
                self.update_oldest()
        assert not self.live, "a request that does not end"
        assert self.scheduler.reset_prefix_cache()
        assert self.scheduler._cache.pool.num_free == self.scheduler._cache.pool.num_usable


def test_rules_hold_for_5000_steps() -> None:
    SchedulerMachine.num_steps = 0
    run_state_machine_as_test(
        SchedulerMachine,
        settings=settings(
            max_examples=150,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert SchedulerMachine.num_steps >= 5000
