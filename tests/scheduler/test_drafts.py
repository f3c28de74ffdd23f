"""Draft tokens: verified within the budget, accepted up to the first that is wrong, and never seen otherwise."""

from __future__ import annotations

import pytest
from scenarios import EOS, add, make_request, make_scheduler, page_ids, update

from scheduler import EngineRequest, EngineRequestStatus, FinishReason, SamplingParams, Scheduler, SpeculativeConfig


def with_drafts(drafts: list[int], prompt_length: int = 4, **limits: object) -> tuple[Scheduler, EngineRequest]:
    """A scheduler with one request that has sampled token 3 and has `drafts` to verify next."""
    scheduler = make_scheduler(**{"num_drafts": 3, **limits})
    request = make_request("a", [1] * prompt_length)
    add(scheduler, request)
    update(scheduler, scheduler.schedule(), {"a": [3]}, {"a": drafts})
    return scheduler, request


def test_2_drafts_are_verified_with_the_newest_token() -> None:
    scheduler, _ = with_drafts([10, 11])
    output = scheduler.schedule()
    assert output.num_scheduled_tokens == {"a": 3}
    assert output.scheduled_spec_decode_tokens == {"a": [10, 11]}
    assert output.scheduled_cached_reqs.num_computed_tokens == [4]


@pytest.mark.parametrize(("accepted", "computed"), [([9], 5), ([10, 9], 6), ([10, 11, 9], 7)])
def test_of_2_drafts_0_1_or_2_are_accepted(accepted: list[int], computed: int) -> None:
    scheduler, request = with_drafts([10, 11])
    output = update(scheduler, scheduler.schedule(), {"a": accepted}, {})["a"]
    assert output.new_token_ids == accepted
    assert request.output_token_ids == [3, *accepted]
    assert request.num_computed_tokens == computed
    assert scheduler.schedule().num_scheduled_tokens == {"a": 1}
    stats = scheduler.get_stats()
    assert (stats.num_draft_tokens, stats.num_accepted_tokens) == (2, len(accepted) - 1)


def test_an_eos_among_accepted_drafts_ends_the_request_there() -> None:
    scheduler, request = with_drafts([EOS, 11])
    output = update(scheduler, scheduler.schedule(), {"a": [EOS, 11, 12]}, {})["a"]
    assert (output.new_token_ids, output.finish_reason) == ([EOS], FinishReason.STOP)
    assert request.output_token_ids == [3, EOS]
    assert not scheduler.has_unfinished_requests()


def test_a_stop_token_among_accepted_drafts_is_the_reason() -> None:
    scheduler, request = with_drafts([10, 42])
    request.sampling_params.stop_token_ids.append(42)
    request.find_stop_ids()
    output = update(scheduler, scheduler.schedule(), {"a": [10, 42, 12]}, {})["a"]
    assert (output.new_token_ids, output.stop_reason) == ([10, 42], 42)


def test_max_tokens_cuts_accepted_drafts() -> None:
    scheduler = make_scheduler(num_drafts=3)
    request = EngineRequest("a", [1] * 4, SamplingParams(max_tokens=3))
    add(scheduler, request)
    update(scheduler, scheduler.schedule(), {"a": [3]}, {"a": [10, 11, 12]})
    output = scheduler.schedule()
    assert output.scheduled_spec_decode_tokens == {"a": [10]}, "two tokens are left, of which one is no draft"
    ended = update(scheduler, output, {"a": [10, 11]}, {})["a"]
    assert (ended.new_token_ids, ended.finish_reason) == ([10, 11], FinishReason.LENGTH)


def test_drafts_stay_within_max_model_len_8() -> None:
    scheduler, _ = with_drafts([10, 11, 12], prompt_length=5, max_model_len=8)
    assert scheduler.schedule().num_scheduled_tokens == {"a": 2}  # positions 5 and 6; the eighth token is the last


def test_a_budget_of_3_leaves_2_of_3_drafts() -> None:
    scheduler, _ = with_drafts([10, 11, 12], budget=3, prompt_length=3)
    output = scheduler.schedule()
    assert output.scheduled_spec_decode_tokens == {"a": [10, 11]}
    assert scheduler.schedule().num_scheduled_tokens == {}, "the third would be stale"
    update(scheduler, output, {"a": [9]})
    assert scheduler.schedule().num_scheduled_tokens == {"a": 1}


def test_a_runner_that_proposes_5_is_held_to_3() -> None:
    scheduler, _ = with_drafts([10, 11, 12, 13, 14])
    assert scheduler.schedule().scheduled_spec_decode_tokens == {"a": [10, 11, 12]}


def test_without_a_speculative_config_all_5_proposals_are_verified() -> None:
    scheduler, _ = with_drafts([10, 11, 12, 13, 14], num_drafts=None)
    assert scheduler.schedule().num_scheduled_tokens == {"a": 6}


def test_with_0_speculative_tokens_proposals_are_dropped() -> None:
    scheduler, _ = with_drafts([10, 11], num_drafts=0)
    assert scheduler.schedule().num_scheduled_tokens == {"a": 1}


def test_pages_taken_for_rejected_drafts_are_used_by_the_tokens_that_follow() -> None:
    scheduler, _ = with_drafts([10, 11, 12], prompt_length=14)
    output = scheduler.schedule()  # positions 14 to 17
    assert [len(table) for table in page_ids(output, "a")] == [1]
    update(scheduler, output, {"a": [9]}, {})
    for _ in range(17):  # positions 15 to 31
        output = scheduler.schedule()
        assert page_ids(output, "a") == ([],)
        update(scheduler, output, {"a": [9]}, {})
        if not scheduler.has_unfinished_requests():
            break
    assert scheduler.get_stats().num_preemptions == 0


def test_a_preempted_request_loses_its_drafts() -> None:
    scheduler, request = with_drafts([10, 11])
    scheduler._preempt(request)
    output = scheduler.schedule()
    assert output.num_scheduled_tokens == {"a": 5}
    assert output.scheduled_spec_decode_tokens == {}


def test_a_request_ended_while_its_drafts_are_verified_leaves_nothing_behind() -> None:
    scheduler, request = with_drafts([10, 11])
    output = scheduler.schedule()
    scheduler.finish_requests("a", EngineRequestStatus.FINISHED_ABORTED)
    assert update(scheduler, output, {"a": [10, 11, 12]}, {}) == {}
    assert request.output_token_ids == [3]
    assert scheduler.get_stats().num_used_pages == 0


def test_drafts_and_async_scheduling_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="async"):
        make_scheduler(async_scheduling=True, num_drafts=1)


def test_a_negative_number_of_drafts_is_refused() -> None:
    with pytest.raises(ValueError, match="num_speculative_tokens"):
        SpeculativeConfig(-1)
