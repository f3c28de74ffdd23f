"""Requests come, are ended from outside, and go, at any time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scenarios import EOS, add, make_request, make_requests, make_scheduler, new_ids, sampled, step, update

from scheduler import EngineRequestStatus, FinishReason, SchedulerInterface
from scheduler.events import EventKind

ABORTED = EngineRequestStatus.FINISHED_ABORTED


def test_a_request_that_is_added_waits_and_counts() -> None:
    scheduler = make_scheduler()
    assert isinstance(scheduler, SchedulerInterface)
    for i, request in enumerate(make_requests(10)):
        scheduler.add_request(request)
        assert scheduler.get_request_counts() == (0, i + 1)
        assert scheduler.get_num_unfinished_requests() == i + 1


def test_a_second_request_of_a_live_id_is_refused_and_one_of_an_ended_id_is_not() -> None:
    scheduler = make_scheduler()
    add(scheduler, make_request("a", [1]))
    with pytest.raises(ValueError, match="'a'"):
        scheduler.add_request(make_request("a", [2]))
    scheduler.finish_requests("a", ABORTED)
    scheduler.add_request(make_request("a", [2]))
    assert scheduler.get_request_counts() == (0, 1)


def test_waiting_requests_are_ended_one_by_one() -> None:
    scheduler = make_scheduler()
    requests = make_requests(10)
    add(scheduler, *requests)
    for i, request in enumerate(requests):
        scheduler.finish_requests(request.request_id, ABORTED)
        assert request.status is ABORTED
        assert scheduler.get_request_counts() == (0, 9 - i)
    assert scheduler.has_finished_requests()
    assert not scheduler.has_unfinished_requests()


def test_unknown_and_ended_ids_are_passed_over() -> None:
    scheduler = make_scheduler()
    add(scheduler, *make_requests(2))
    step(scheduler)
    scheduler.finish_requests(["0", "nobody", "0"], ABORTED)
    scheduler.finish_requests(("0",), ABORTED)
    assert scheduler.get_request_counts() == (1, 0)
    assert scheduler.schedule().finished_req_ids == {"0"}


def test_a_request_cannot_be_ended_as_running() -> None:
    with pytest.raises(ValueError, match="RUNNING"):
        make_scheduler().finish_requests([], EngineRequestStatus.RUNNING)


def test_the_runner_is_told_of_an_end_once() -> None:
    scheduler = make_scheduler()
    add(scheduler, *make_requests(2))
    output = scheduler.schedule()
    update(scheduler, output, {"0": [EOS], "1": [5]})
    assert scheduler.has_finished_requests()
    assert scheduler.schedule().finished_req_ids == {"0"}
    assert not scheduler.has_finished_requests()
    assert scheduler.schedule().finished_req_ids == set()


def test_what_a_step_samples_for_a_request_that_was_ended_meanwhile_is_dropped() -> None:
    scheduler = make_scheduler(caching=False)
    first, second = make_requests(2)
    add(scheduler, first, second)
    output = scheduler.schedule()
    scheduler.finish_requests("0", ABORTED)
    assert list(update(scheduler, output, {"0": [5], "1": [6]})) == ["1"]
    assert (first.output_token_ids, second.output_token_ids) == ([], [6])
    assert scheduler.get_stats().num_used_pages == 1


def test_what_a_step_samples_for_an_earlier_request_of_the_same_id_is_dropped() -> None:
    scheduler = make_scheduler()
    add(scheduler, make_request("a", [1] * 4))
    output = scheduler.schedule()
    scheduler.finish_requests("a", ABORTED)
    again = make_request("a", [2] * 4)
    add(scheduler, again)
    assert update(scheduler, output, {"a": [5]}) == {}
    output = scheduler.schedule()
    assert output.finished_req_ids == {"a"}
    assert new_ids(output) == ["a"]
    assert update(scheduler, output, {"a": [6]})["a"].new_token_ids == [6]


def preempted_in_flight() -> tuple:  # type: ignore[type-arg]
    """Two requests of 80 tokens in 10 pages; "1" is preempted while the step that computes its prompt runs."""
    scheduler = make_scheduler(num_pages=11, caching=False)
    requests = make_requests(2, num_tokens=80)
    add(scheduler, requests[0])
    first = scheduler.schedule()
    add(scheduler, requests[1])
    second = scheduler.schedule()
    assert second.num_scheduled_tokens == {"1": 80}
    update(scheduler, first, {"0": [42]})
    assert scheduler.schedule().preempted_req_ids == {"1"}
    return scheduler, requests[1], second


def test_a_token_sampled_for_a_request_that_was_preempted_meanwhile_counts() -> None:
    scheduler, request, output = preempted_in_flight()
    assert update(scheduler, output, {"1": [42]})["1"].new_token_ids == [42]
    assert request.output_token_ids == [42]
    scheduler.finish_requests("0", ABORTED)
    resumed = scheduler.schedule()
    assert resumed.num_scheduled_tokens == {"1": 81}
    assert update(scheduler, resumed, {"1": [43]})["1"].new_token_ids == [43]


def test_a_token_that_ends_a_request_that_was_preempted_meanwhile_takes_it_off_the_queue() -> None:
    scheduler, request, output = preempted_in_flight()
    assert update(scheduler, output, {"1": [EOS]})["1"].finish_reason is FinishReason.STOP
    assert request.status is EngineRequestStatus.FINISHED_STOPPED
    assert scheduler.get_request_counts() == (1, 0)


def test_a_token_sampled_before_a_preemption_is_void_once_the_request_has_begun_anew() -> None:
    scheduler, request, output = preempted_in_flight()
    scheduler.finish_requests("0", ABORTED)
    resumed = scheduler.schedule()
    assert resumed.num_scheduled_tokens == {"1": 80}
    assert update(scheduler, output, {"1": [42]}) == {}
    assert update(scheduler, resumed, {"1": [42]})["1"].new_token_ids == [42]
    assert request.output_token_ids == [42]


def test_outputs_go_to_the_client_that_asked() -> None:
    scheduler = make_scheduler()
    add(
        scheduler, make_request("a", [1]), make_request("b", [2], client_index=3), make_request("c", [], client_index=3)
    )
    output = scheduler.schedule()
    by_client = scheduler.update_from_output(output, sampled(output, {"a": [5], "b": [6]}))
    assert {client: [o.request_id for o in outputs.outputs] for client, outputs in by_client.items()} == {
        0: ["a"],
        3: ["b", "c"],
    }
    assert all(outputs.finished_requests is None for outputs in by_client.values())


def test_include_finished_set_tells_each_client_which_of_its_requests_ended_however_they_did() -> None:
    scheduler = make_scheduler(include_finished_set=True)
    add(
        scheduler,
        make_request("a", [1]),
        make_request("b", [2], client_index=1),
        make_request("c", [3], client_index=2),
    )
    output = scheduler.schedule()
    scheduler.finish_requests("c", ABORTED)
    by_client = scheduler.update_from_output(output, sampled(output, {"a": [EOS], "b": [6]}))
    assert by_client[0].finished_requests == {"a"}
    assert not by_client[1].finished_requests
    assert (by_client[2].outputs, by_client[2].finished_requests) == ([], {"c"})
    output = scheduler.schedule()
    assert not scheduler.update_from_output(output, sampled(output, {"b": [6]}))[1].finished_requests


def test_shutdown_aborts_all_and_lets_go_of_their_pages() -> None:
    scheduler = make_scheduler(max_num_seqs=2)
    requests = make_requests(3)
    add(scheduler, *requests, make_request("failed", []))
    step(scheduler)
    add(scheduler, make_request("failed too", []))
    scheduler.shutdown()
    assert {request.status for request in requests} == {ABORTED}
    assert scheduler.get_num_unfinished_requests() == 0
    assert scheduler.get_stats().num_used_pages == 0
    assert scheduler.schedule().num_scheduled_tokens == {}


def test_events_tell_the_life_of_a_request_in_order() -> None:
    scheduler = make_scheduler(num_pages=11, caching=False, record_events=True)
    add(scheduler, *make_requests(2, num_tokens=80, max_tokens=2))
    while scheduler.has_unfinished_requests():
        step(scheduler)
    events = scheduler.take_events()
    assert [event.kind for event in events if event.request_id == "1"] == [
        EventKind.QUEUED,
        EventKind.SCHEDULED,
        EventKind.FIRST_TOKEN,
        EventKind.PREEMPTED,
        EventKind.SCHEDULED,
        EventKind.FINISHED,
    ]
    assert [event.time for event in events] == sorted(event.time for event in events)
    assert scheduler.take_events() == []


def test_no_events_are_kept_unless_asked_for() -> None:
    scheduler = make_scheduler()
    add(scheduler, *make_requests(1))
    step(scheduler)
    assert scheduler.take_events() == []


def test_stats_count_pages_hits_and_preemptions() -> None:
    scheduler = make_scheduler(num_pages=11)
    add(scheduler, *make_requests(2, num_tokens=80))
    step(scheduler)
    step(scheduler)
    stats = scheduler.get_stats()
    assert (stats.num_running, stats.num_waiting) == (1, 1)
    assert (stats.num_used_pages, stats.num_pages) == (6, 10)
    assert (stats.num_prompt_tokens, stats.num_cached_tokens) == (160, 0)
    assert (stats.num_preemptions, stats.num_recomputed_tokens) == (1, 80)


def test_a_request_that_the_runner_cannot_go_on_with_ends_as_an_error_and_the_others_go_on() -> None:
    scheduler = make_scheduler()
    requests = make_requests(2)
    add(scheduler, *requests)
    step(scheduler)
    output = scheduler.schedule()
    answer = replace(sampled(output, {"0": [-1], "1": [7]}), errors={"0": "no number"})
    outputs = {one.request_id: one for one in scheduler.update_from_output(output, answer)[0].outputs}
    assert (outputs["0"].finish_reason, outputs["0"].error) == (FinishReason.ERROR, "no number")
    assert outputs["0"].new_token_ids == []
    assert outputs["1"].new_token_ids == [7]
    assert requests[0].status is EngineRequestStatus.FINISHED_IGNORED
    assert scheduler.schedule().finished_req_ids == {"0"}
