"""What a step computes: budget, order, admission and preemption."""

from __future__ import annotations

import pytest
from scenarios import add, make_request, make_requests, make_scheduler, new_ids, page_ids, step, update

from scheduler import EngineRequestStatus, FinishReason, SamplingParams, SchedulerConfig


def test_10_prompts_of_100_tokens_all_begin_in_a_budget_of_2048() -> None:
    scheduler = make_scheduler(budget=2048)
    add(scheduler, *make_requests(10, num_tokens=100))
    output = scheduler.schedule()
    assert new_ids(output) == [str(i) for i in range(10)]
    assert output.num_scheduled_tokens == {str(i): 100 for i in range(10)}
    assert output.total_num_scheduled_tokens == 1000
    assert output.scheduled_cached_reqs.num_reqs == 0
    assert output.finished_req_ids == set()
    assert scheduler.get_request_counts() == (10, 0)


def test_a_budget_of_1024_is_spent_on_800_and_then_224_tokens() -> None:
    scheduler = make_scheduler(budget=1024)
    add(scheduler, *make_requests(3, num_tokens=800))
    assert step(scheduler).num_scheduled_tokens == {"0": 800, "1": 224}
    # A decode token first, then what is left of the second prompt, then as much of the third as fits.
    assert step(scheduler).num_scheduled_tokens == {"0": 1, "1": 576, "2": 447}
    assert step(scheduler).num_scheduled_tokens == {"0": 1, "1": 1, "2": 353}
    assert step(scheduler).num_scheduled_tokens == {"0": 1, "1": 1, "2": 1}


def test_three_prompts_of_800_run_side_by_side_under_a_threshold_of_400() -> None:
    scheduler = make_scheduler(budget=1024, long_prefill_token_threshold=400)
    add(scheduler, *make_requests(3, num_tokens=800))
    assert step(scheduler).num_scheduled_tokens == {"0": 400, "1": 400, "2": 224}
    assert step(scheduler).num_scheduled_tokens == {"0": 400, "1": 400, "2": 224}
    assert step(scheduler).num_scheduled_tokens == {"0": 1, "1": 1, "2": 352}


def test_with_chunked_prefill_off_800_tokens_wait_for_a_budget_of_1024() -> None:
    scheduler = make_scheduler(budget=1024, chunked_prefill_enabled=False)
    add(scheduler, *make_requests(2, num_tokens=800))
    assert step(scheduler).num_scheduled_tokens == {"0": 800}
    assert step(scheduler).num_scheduled_tokens == {"0": 1, "1": 800}


def test_with_chunked_prefill_off_1025_tokens_never_fit_a_budget_of_1024() -> None:
    scheduler = make_scheduler(budget=1024, chunked_prefill_enabled=False)
    add(scheduler, *make_requests(1, num_tokens=1025))
    ended = update(scheduler, scheduler.schedule(), {})["0"]
    assert ended.finish_reason is FinishReason.ERROR
    assert "1025" in (ended.error or "") and "1024" in (ended.error or "")


def test_a_threshold_divides_prompts_which_chunked_prefill_off_forbids() -> None:
    with pytest.raises(ValueError, match="long_prefill_token_threshold"):
        SchedulerConfig(1, 1, 1, long_prefill_token_threshold=4, chunked_prefill_enabled=False)


def test_4_of_6_requests_run_with_max_num_seqs_4() -> None:
    scheduler = make_scheduler(max_num_seqs=4)
    add(scheduler, *make_requests(6))
    assert new_ids(step(scheduler)) == ["0", "1", "2", "3"]
    assert new_ids(step(scheduler)) == []
    scheduler.finish_requests("1", EngineRequestStatus.FINISHED_ABORTED)
    assert new_ids(step(scheduler)) == ["4"]
    assert scheduler.get_request_counts() == (4, 1)


def test_no_more_requests_run_than_the_largest_bucket_holds() -> None:
    scheduler = make_scheduler(max_num_seqs=16, max_num_seq_buckets=[2, 4])
    add(scheduler, *make_requests(6))
    assert len(new_ids(scheduler.schedule())) == 4


@pytest.mark.parametrize("length", [50, 51, 200])
def test_a_prompt_that_fills_max_model_len_50_is_an_error_and_not_a_hang(length: int) -> None:
    scheduler = make_scheduler(max_model_len=50)
    add(scheduler, *make_requests(1, num_tokens=length))
    assert scheduler.get_num_unfinished_requests() == 1
    output = scheduler.schedule()
    assert output.total_num_scheduled_tokens == 0
    ended = update(scheduler, output, {})["0"]
    assert (ended.finish_reason, ended.new_token_ids) == (FinishReason.ERROR, [])
    assert str(length) in (ended.error or "")
    assert not scheduler.has_unfinished_requests()


def test_a_prompt_of_160_tokens_leaves_no_page_of_9_times_16_for_it() -> None:
    scheduler = make_scheduler(num_pages=10)  # one is the null page
    add(scheduler, make_request("144", [1] * 144), make_request("145", [2] * 145))
    output = scheduler.schedule()
    assert output.num_scheduled_tokens == {"144": 144}
    ended = update(scheduler, output, {"144": [5]})
    assert ended["145"].finish_reason is FinishReason.ERROR
    # Its first token needs no page, for it is the last.
    assert (ended["144"].new_token_ids, ended["144"].finish_reason) == ([5], FinishReason.LENGTH)


def test_an_empty_prompt_is_an_error() -> None:
    scheduler = make_scheduler()
    add(scheduler, make_request("empty", []))
    assert update(scheduler, scheduler.schedule(), {})["empty"].finish_reason is FinishReason.ERROR


def test_a_blocked_head_blocks_those_behind_it() -> None:
    scheduler = make_scheduler(num_pages=11, caching=False)
    add(scheduler, make_request("a", [1] * 80), make_request("long", [2] * 90), make_request("short", [3] * 10))
    assert new_ids(step(scheduler)) == ["a"]  # 5 of 10 pages; "long" needs 6
    assert new_ids(step(scheduler)) == []
    assert scheduler.get_request_counts() == (1, 2)


def test_a_prompt_begun_in_chunks_keeps_its_pages_from_the_next() -> None:
    # 9 pages of 16. "a" takes 2 of its 6 pages in the first step; "b" could have 6 of the 7 left, and would then be
    # preempted in the middle of its prompt.
    scheduler = make_scheduler(num_pages=10, budget=32, caching=False)
    add(scheduler, make_request("a", [1] * 90), make_request("b", [2] * 90))
    for _ in range(3):
        assert list(step(scheduler).num_scheduled_tokens) == ["a"]
    assert scheduler.get_request_counts() == (1, 1)


def test_the_last_is_preempted_where_10_pages_are_too_few_for_2_prompts_of_80() -> None:
    scheduler = make_scheduler(num_pages=11, caching=False)
    first, second = make_requests(2, num_tokens=80)
    add(scheduler, first, second)
    step(scheduler)
    output = step(scheduler)  # the 81st token needs a sixth page
    assert output.preempted_req_ids == {"1"}
    assert output.num_scheduled_tokens == {"0": 1}
    assert (second.status, second.num_computed_tokens) == (EngineRequestStatus.PREEMPTED, 0)
    assert scheduler.get_request_counts() == (1, 1)


def test_a_preempted_request_is_resumed_with_all_its_tokens_before_those_that_wait() -> None:
    scheduler = make_scheduler(num_pages=11, caching=False)
    add(scheduler, *make_requests(2, num_tokens=80), make_request("2", [2] * 8))
    step(scheduler, token=7)
    step(scheduler, token=7)
    scheduler.finish_requests("0", EngineRequestStatus.FINISHED_ABORTED)
    output = step(scheduler, token=8)
    cached = output.scheduled_cached_reqs
    assert (cached.req_ids, cached.resumed_from_preemption) == (["1"], [True])
    assert cached.new_token_ids == [[1] * 80 + [7]]
    assert cached.num_computed_tokens == [0]
    assert [len(table) for table in page_ids(output, "1")] == [6]
    assert output.num_scheduled_tokens == {"1": 81, "2": 8}
    assert new_ids(output) == ["2"]


def test_a_request_that_was_preempted_comes_back_once_every_other_has_a_page_to_go_on_with() -> None:
    # 6 usable pages of 4, 2 for each request. "0" takes a third, for which "2" is preempted, and ends after 5 steps.
    # The 3 pages that are free then would do for "2", but "1" takes one of them two steps later.
    scheduler = make_scheduler(num_pages=7, page_size=4, caching=False)
    add(scheduler, make_request("0", [1] * 8, max_tokens=5), make_request("1", [2] * 6, max_tokens=8))
    add(scheduler, make_request("2", [3] * 8, max_tokens=5))
    begun_at = []
    for number in range(1, 20):
        if "2" in step(scheduler).num_scheduled_tokens:
            begun_at.append(number)
    assert begun_at == [1, 9, 10, 11, 12]
    assert scheduler.get_stats().num_preemptions == 1


def test_the_oldest_request_computes_in_every_step_however_small_the_pool() -> None:
    """The bound on preemption: it takes a page newly taken by an older request, and the oldest goes on always."""
    scheduler = make_scheduler(num_pages=9, page_size=4, max_model_len=30, caching=False)
    add(scheduler, *make_requests(8, num_tokens=6, max_tokens=20))
    num_preemptions: dict[str, int] = {}
    pages_taken_by_older = 0
    while scheduler.has_unfinished_requests():
        oldest = next((str(i) for i in range(8) if str(i) in scheduler._requests), None)
        output = step(scheduler)
        assert oldest in output.num_scheduled_tokens
        for request_id in output.preempted_req_ids:
            num_preemptions[request_id] = num_preemptions.get(request_id, 0) + 1
        pages_taken_by_older += sum(len(pages[0]) for pages in output.scheduled_cached_reqs.new_page_ids)
    assert 0 < sum(num_preemptions.values()) <= pages_taken_by_older


def test_the_most_urgent_begin_first_and_equals_in_order_of_arrival() -> None:
    scheduler = make_scheduler(policy="priority")
    add(
        scheduler,
        make_request("lazy", [1] * 5, priority=2, arrival_time=1.0),
        make_request("late", [2] * 5, priority=1, arrival_time=3.0),
        make_request("early", [3] * 5, priority=1, arrival_time=2.0),
        make_request("urgent", [4] * 5, priority=0, arrival_time=4.0),
    )
    assert new_ids(scheduler.schedule()) == ["urgent", "early", "late", "lazy"]


def test_the_least_urgent_is_preempted_though_it_began_first() -> None:
    # 4 usable pages: "low" holds 2 for its 30 tokens, "high" 2 for its 32, and a third for the 33rd.
    scheduler = make_scheduler(policy="priority", num_pages=5, max_num_seqs=2)
    add(scheduler, make_request("low", [1] * 30, priority=1))
    step(scheduler)
    add(scheduler, make_request("high", [2] * 32, priority=0))
    assert step(scheduler).num_scheduled_tokens == {"low": 1, "high": 32}
    output = step(scheduler)
    assert output.preempted_req_ids == {"low"}
    assert output.num_scheduled_tokens == {"high": 1}
    scheduler.finish_requests("high", EngineRequestStatus.FINISHED_STOPPED)
    output = step(scheduler)
    assert output.scheduled_cached_reqs.resumed_from_preemption == [True]
    assert output.finished_req_ids == {"high"}


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="fairest"):
        SchedulerConfig(1, 1, 1, policy="fairest")


@pytest.mark.parametrize("limit", ["max_num_seqs", "max_num_batched_tokens", "max_model_len"])
def test_a_limit_of_0_is_refused(limit: str) -> None:
    limits = {"max_num_seqs": 1, "max_num_batched_tokens": 1, "max_model_len": 1, limit: 0}
    with pytest.raises(ValueError, match=limit):
        SchedulerConfig(**limits)


def test_pages_of_one_size_are_needed_in_all_groups() -> None:
    from scenarios import full

    with pytest.raises(ValueError, match="pages of 16"):
        make_scheduler(full(16), full(8))


def test_a_running_request_gets_new_pages_only_when_its_own_are_full() -> None:
    scheduler = make_scheduler()
    add(scheduler, *make_requests(1, num_tokens=30))
    assert [len(table) for table in page_ids(step(scheduler), "0")] == [2]  # positions 0 to 29
    assert page_ids(step(scheduler), "0") == ([],)  # position 30
    assert page_ids(step(scheduler), "0") == ([],)  # position 31
    assert [len(table) for table in page_ids(step(scheduler), "0")] == [1]  # position 32


def test_num_common_prefix_pages_counts_what_all_scheduled_requests_share() -> None:
    scheduler = make_scheduler()
    shared = list(range(40))  # two whole pages and a half
    add(scheduler, *[make_request(str(i), shared + [100 + i] * 20) for i in range(3)])
    assert step(scheduler).num_common_prefix_pages == [2]
    add(scheduler, make_request("other", [9] * 20))
    assert step(scheduler).num_common_prefix_pages == [0]
    scheduler.finish_requests("other", EngineRequestStatus.FINISHED_ABORTED)
    assert step(scheduler).num_common_prefix_pages == [2]


def test_an_idle_scheduler_gives_an_empty_step() -> None:
    output = make_scheduler().schedule()
    assert output.num_scheduled_tokens == {}
    assert output.num_common_prefix_pages == [0]


def test_sampling_params_cross_to_the_runner_as_they_are() -> None:
    scheduler = make_scheduler()
    request = make_request("a", [1, 2, 3], sample_index=2)
    request.sampling_params = SamplingParams(seed=5, temperature=0.5)
    add(scheduler, request)
    (new,) = scheduler.schedule().scheduled_new_reqs
    assert new.sampling_params is request.sampling_params
    assert (new.prompt_token_ids, new.sample_index, new.num_computed_tokens) == ([1, 2, 3], 2, 0)
