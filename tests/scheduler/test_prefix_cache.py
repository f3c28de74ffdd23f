"""What is computed once and found again."""

from __future__ import annotations

from scenarios import EOS, add, make_request, make_requests, make_scheduler, page_ids, step, update

from scheduler import EngineRequestStatus, SamplingParams, Scheduler

ABORTED = EngineRequestStatus.FINISHED_ABORTED


def run_to_the_end(scheduler: Scheduler) -> None:
    while scheduler.has_unfinished_requests():
        step(scheduler)


def test_a_prompt_of_55_tokens_finds_3_whole_pages_and_computes_7_tokens() -> None:
    scheduler = make_scheduler()
    prompt = list(range(55))
    add(scheduler, make_request("a", prompt))
    first = step(scheduler)
    add(scheduler, make_request("b", prompt))
    second = scheduler.schedule()
    assert second.num_scheduled_tokens == {"a": 1, "b": 7}
    (new,) = second.scheduled_new_reqs
    assert new.num_computed_tokens == 48
    (pages_a,), (pages_b,) = page_ids(first, "a"), page_ids(second, "b")
    assert pages_b[:3] == pages_a[:3]
    assert pages_b[3] != pages_a[3], "a page that is not full is not shared"
    assert update(scheduler, second, {"a": [5], "b": [6]})["b"].num_cached_tokens == 48


def test_a_prompt_of_48_tokens_all_cached_still_computes_its_last_page() -> None:
    scheduler = make_scheduler()
    prompt = list(range(48))
    add(scheduler, make_request("a", prompt))
    step(scheduler)
    add(scheduler, make_request("b", prompt))
    assert scheduler.schedule().num_scheduled_tokens["b"] == 16


def test_two_equal_prompts_in_one_step_compute_their_pages_once() -> None:
    scheduler = make_scheduler()
    prompt = list(range(40))
    add(scheduler, make_request("a", prompt), make_request("b", prompt))
    assert scheduler.schedule().num_scheduled_tokens == {"a": 40, "b": 8}


def test_generated_tokens_are_cached_too() -> None:
    scheduler = make_scheduler()
    request = make_request("a", list(range(17)), max_tokens=16)
    add(scheduler, request)
    run_to_the_end(scheduler)
    # 33 tokens, the last of which was not computed: two whole pages.
    add(scheduler, make_request("b", request.prompt_token_ids + request.output_token_ids + [9]))
    assert scheduler.schedule().num_scheduled_tokens == {"b": 2}


def test_rejected_drafts_are_not_cached() -> None:
    scheduler = make_scheduler(page_size=4, num_drafts=3)
    add(scheduler, make_request("a", [1, 2]))
    update(scheduler, scheduler.schedule(), {"a": [3]}, {"a": [4, 5, 6]})
    update(scheduler, scheduler.schedule(), {"a": [9]}, {"a": []})
    scheduler.finish_requests("a", ABORTED)
    assert scheduler._cache.pool.num_cached == 0  # [1, 2, 3, 9] is full but its last token is not computed
    add(scheduler, make_request("b", [1, 2, 3, 4, 5]))
    assert scheduler.schedule().num_scheduled_tokens == {"b": 5}


def test_a_different_first_token_shares_nothing() -> None:
    scheduler = make_scheduler()
    add(scheduler, make_request("a", [1] * 40))
    step(scheduler)
    add(scheduler, make_request("b", [2] + [1] * 39))
    assert scheduler.schedule().num_scheduled_tokens["b"] == 40


def test_equal_tokens_after_different_beginnings_share_nothing() -> None:
    scheduler = make_scheduler()
    add(scheduler, make_request("a", [1] * 16 + [3] * 20))
    step(scheduler)
    add(scheduler, make_request("b", [2] * 16 + [3] * 20))
    assert scheduler.schedule().num_scheduled_tokens["b"] == 36


def test_a_salt_shares_with_its_own_only() -> None:
    scheduler = make_scheduler()
    prompt = list(range(40))
    add(scheduler, make_request("a", prompt, cache_salt="x"))
    step(scheduler)
    add(scheduler, make_request("none", prompt), make_request("y", prompt, cache_salt="y"))
    add(scheduler, make_request("x", prompt, cache_salt="x"))
    assert scheduler.schedule().num_scheduled_tokens == {"a": 1, "none": 40, "y": 40, "x": 8}


def test_caching_off_finds_nothing() -> None:
    scheduler = make_scheduler(caching=False)
    add(scheduler, make_request("a", [1] * 40))
    step(scheduler)
    add(scheduler, make_request("b", [1] * 40))
    assert scheduler.schedule().num_scheduled_tokens["b"] == 40
    assert scheduler._cache.pool.num_cached == 0


def test_the_tail_of_a_sequence_is_evicted_before_its_head() -> None:
    scheduler = make_scheduler(num_pages=9)  # 8 usable
    prompt = list(range(64))
    add(scheduler, make_request("a", prompt, max_tokens=1))
    run_to_the_end(scheduler)
    add(scheduler, make_request("b", [99] * 100, max_tokens=1))  # 7 pages: 4 that were never used, and 3 of a's
    run_to_the_end(scheduler)
    add(scheduler, make_request("c", prompt))
    assert scheduler.schedule().num_scheduled_tokens == {"c": 48}


def test_the_least_recently_used_sequence_is_evicted_first() -> None:
    scheduler = make_scheduler(num_pages=9)
    for name, token in (("a", 1), ("b", 2), ("a again", 1)):
        add(scheduler, make_request(name, [token] * 49, max_tokens=1))  # 3 whole pages and one more
        run_to_the_end(scheduler)
    add(scheduler, make_request("c", [3] * 60, max_tokens=1))
    run_to_the_end(scheduler)
    add(scheduler, make_request("a?", [1] * 49), make_request("b?", [2] * 49))
    assert scheduler.schedule().num_scheduled_tokens == {"a?": 1, "b?": 33}


def test_pages_that_hold_nothing_to_find_are_handed_out_before_cached_ones() -> None:
    scheduler = make_scheduler(num_pages=4)
    add(scheduler, make_request("a", [1] * 17, max_tokens=1))
    run_to_the_end(scheduler)
    add(scheduler, make_request("b", [2] * 30, max_tokens=1))  # the page half filled, and the one never used
    run_to_the_end(scheduler)
    add(scheduler, make_request("a?", [1] * 17))
    assert scheduler.schedule().num_scheduled_tokens == {"a?": 1}


def test_of_two_pages_with_the_same_contents_one_is_found_and_both_come_back() -> None:
    scheduler = make_scheduler(num_pages=9)
    prompt = list(range(15))
    add(scheduler, make_request("a", prompt), make_request("b", prompt))
    for _ in range(3):  # both fill their first page with the same two tokens
        step(scheduler, token=7)
    assert scheduler._cache.pool.num_cached == 1
    assert scheduler.get_stats().num_used_pages == 4
    scheduler.finish_requests(["a", "b"], ABORTED)
    assert scheduler.get_stats().num_used_pages == 0
    add(scheduler, make_request("c", [*prompt, 7, 7]))
    assert scheduler.schedule().num_scheduled_tokens == {"c": 1}


def test_a_preempted_request_finds_its_own_pages_again() -> None:
    scheduler = make_scheduler(num_pages=11)
    add(scheduler, *make_requests(2, num_tokens=80))
    step(scheduler)
    assert step(scheduler).preempted_req_ids == {"1"}
    scheduler.finish_requests("0", ABORTED)
    output = scheduler.schedule()
    assert output.num_scheduled_tokens == {"1": 17}  # one page was given to "0"
    assert output.scheduled_cached_reqs.num_computed_tokens == [64]
    ended = update(scheduler, output, {"1": [EOS]})["1"]
    assert ended.num_cached_tokens == 0, "what was computed for the request is no gift"


def test_a_hit_on_free_pages_takes_them_from_those_that_are_free() -> None:
    scheduler = make_scheduler(num_pages=5)  # 4 usable
    add(scheduler, make_request("a", [1] * 40, max_tokens=1))
    run_to_the_end(scheduler)
    add(scheduler, make_request("b", [1] * 33), make_request("c", [2] * 20))
    # "b" takes the two cached pages and one more, which leaves one page: too few for "c".
    assert scheduler.schedule().num_scheduled_tokens == {"b": 1}


def test_reset_is_refused_while_a_page_is_in_use_and_forgets_all_after() -> None:
    scheduler = make_scheduler()
    add(scheduler, make_request("a", [1] * 40))
    step(scheduler)
    assert scheduler.reset_prefix_cache() is False
    scheduler.finish_requests("a", ABORTED)
    assert scheduler.reset_prefix_cache() is True
    add(scheduler, make_request("b", [1] * 40))
    assert scheduler.schedule().num_scheduled_tokens == {"b": 40}


def test_a_request_that_wants_its_prompts_logprobs_takes_no_hit_but_leaves_its_pages() -> None:
    scheduler = make_scheduler()
    request = make_request("a", [1] * 40)
    request.sampling_params = SamplingParams(prompt_logprobs=0, max_tokens=4)
    add(scheduler, request)
    step(scheduler)
    again = make_request("b", [1] * 40)
    again.sampling_params = SamplingParams(prompt_logprobs=0, max_tokens=4)
    add(scheduler, again, make_request("c", [1] * 40))
    assert scheduler.schedule().num_scheduled_tokens == {"a": 1, "b": 40, "c": 8}
