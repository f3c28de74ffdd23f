"""Steps scheduled before the tokens of the step before them are known."""

from __future__ import annotations

from collections import deque

from fake_runner import FakeRunner, continuation
from scenarios import EOS, add, make_request, make_scheduler, update

from scheduler import CacheGroupsConfig, CacheGroupSpec, FinishReason
from scheduler.output import ModelRunnerOutput, SchedulerOutput


def test_the_next_token_is_scheduled_before_the_last_is_known() -> None:
    scheduler = make_scheduler(async_scheduling=True)
    add(scheduler, make_request("a", [1] * 20))
    first, second, third = scheduler.schedule(), scheduler.schedule(), scheduler.schedule()
    assert [step.num_scheduled_tokens for step in (first, second, third)] == [{"a": 20}, {"a": 1}, {"a": 1}]
    assert second.scheduled_cached_reqs.num_computed_tokens == [20]
    assert third.scheduled_cached_reqs.num_computed_tokens == [21]
    assert update(scheduler, first, {"a": [5]})["a"].new_token_ids == [5]
    assert update(scheduler, second, {"a": [6]})["a"].new_token_ids == [6]
    assert update(scheduler, third, {"a": [7]})["a"].new_token_ids == [7]


def test_without_async_scheduling_a_step_scheduled_early_leaves_the_request_out() -> None:
    scheduler = make_scheduler()
    add(scheduler, make_request("a", [1] * 20))
    first = scheduler.schedule()
    assert scheduler.schedule().num_scheduled_tokens == {}
    update(scheduler, first, {"a": [5]})
    assert scheduler.schedule().num_scheduled_tokens == {"a": 1}


def test_no_token_is_scheduled_past_max_tokens_2() -> None:
    scheduler = make_scheduler(async_scheduling=True)
    add(scheduler, make_request("a", [1] * 20, max_tokens=2))
    first, second = scheduler.schedule(), scheduler.schedule()
    assert scheduler.schedule().num_scheduled_tokens == {}
    update(scheduler, first, {"a": [5]})
    assert update(scheduler, second, {"a": [6]})["a"].finish_reason is FinishReason.LENGTH


def test_what_was_scheduled_behind_an_eos_is_dropped() -> None:
    scheduler = make_scheduler(async_scheduling=True)
    request = make_request("a", [1] * 20)
    add(scheduler, request)
    first, second = scheduler.schedule(), scheduler.schedule()
    assert update(scheduler, first, {"a": [EOS]})["a"].finish_reason is FinishReason.STOP
    assert update(scheduler, second, {"a": [6]}) == {}
    assert request.output_token_ids == [EOS]
    assert scheduler.get_stats().num_used_pages == 0


def test_rows_of_a_loop_one_step_ahead_are_those_of_the_loop_in_step() -> None:
    # 30 requests in 23 pages of 4, so that some are preempted while a step with them runs.
    scheduler = make_scheduler(
        async_scheduling=True, num_pages=24, page_size=4, max_num_seqs=6, budget=32, max_model_len=64
    )
    runner = FakeRunner(CacheGroupsConfig(24, [CacheGroupSpec(group.spec) for group in scheduler._cache.groups]), 4)  # type: ignore[union-attr]
    requests = [make_request(str(i), [i, *range(1, i)], max_tokens=20) for i in range(1, 31)]
    add(scheduler, *requests)
    in_flight: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = deque()
    while scheduler.has_unfinished_requests():
        output = scheduler.schedule()
        in_flight.append((output, runner.run(output)))
        if len(in_flight) == 2:
            scheduler.update_from_output(*in_flight.popleft())
    assert scheduler.get_stats().num_preemptions > 0
    for request in requests:
        assert request.output_token_ids == continuation(request.prompt_token_ids, 20)
