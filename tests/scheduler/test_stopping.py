"""When a request ends, and what it says then."""

from __future__ import annotations

import pytest
from scenarios import EOS, add, make_request, make_requests, make_scheduler, step, update

from scheduler import EngineCoreOutput, EngineRequest, EngineRequestStatus, FinishReason, SamplingParams
from scheduler.output import ModelRunnerOutput, TokenLogprobs


def end_with(tokens: list[int], request: EngineRequest) -> EngineCoreOutput:
    """The last output of a request that samples `tokens`, one a step."""
    scheduler = make_scheduler()
    add(scheduler, request)
    for token in tokens:
        output = update(scheduler, scheduler.schedule(), {request.request_id: [token]})[request.request_id]
    return output


def request_with(eos: int | list[int] | None = EOS, **params: object) -> EngineRequest:
    return EngineRequest("a", [1, 2, 3], SamplingParams(**params), eos_token_id=eos)


@pytest.mark.parametrize("eos", [EOS, [EOS], [3, EOS]])
def test_an_eos_token_stops_without_a_reason(eos: int | list[int]) -> None:
    output = end_with([10, EOS], request_with(eos))
    assert (output.new_token_ids, output.finish_reason, output.stop_reason) == ([EOS], FinishReason.STOP, None)


def test_a_stop_token_stops_and_is_the_reason() -> None:
    output = end_with([10, 42], request_with(stop_token_ids=[42, 43]))
    assert (output.finish_reason, output.stop_reason) == (FinishReason.STOP, 42)


def test_ignore_eos_goes_on_to_max_tokens_3() -> None:
    output = end_with([EOS, EOS, EOS], request_with(ignore_eos=True, max_tokens=3))
    assert (output.finish_reason, output.stop_reason) == (FinishReason.LENGTH, None)


def test_ignore_eos_is_not_about_the_users_own_stop_tokens() -> None:
    output = end_with([EOS, 42], request_with(ignore_eos=True, stop_token_ids=[42]))
    assert (output.finish_reason, output.stop_reason) == (FinishReason.STOP, 42)


def test_ignore_eos_and_eos_as_a_stop_token_of_the_users() -> None:
    output = end_with([EOS], request_with(ignore_eos=True, stop_token_ids=[EOS]))
    assert (output.finish_reason, output.stop_reason) == (FinishReason.STOP, EOS)


def test_a_token_that_is_both_eos_and_a_stop_token_counts_as_eos() -> None:
    assert end_with([EOS], request_with(stop_token_ids=[EOS])).stop_reason is None


def test_max_tokens_2_ends_by_length() -> None:
    output = end_with([10, 11], request_with(max_tokens=2))
    assert (output.finish_reason, output.new_token_ids) == (FinishReason.LENGTH, [11])


def test_eos_as_the_last_token_allowed_is_a_stop() -> None:
    assert end_with([10, EOS], request_with(max_tokens=2)).finish_reason is FinishReason.STOP


def test_no_eos_ends_a_request_before_min_tokens_3() -> None:
    output = end_with([EOS, 42, EOS], request_with(min_tokens=3, stop_token_ids=[42]))
    assert (output.finish_reason, output.stop_reason) == (FinishReason.STOP, None)


def test_max_tokens_ends_a_request_that_asks_for_more_min_tokens() -> None:
    assert end_with([10, 11], request_with(min_tokens=5, max_tokens=2)).finish_reason is FinishReason.LENGTH


def test_a_prompt_of_5_tokens_generates_3_in_max_model_len_8() -> None:
    scheduler = make_scheduler(max_model_len=8)
    request = make_request("a", [1] * 5, max_tokens=100)
    add(scheduler, request)
    while scheduler.has_unfinished_requests():
        step(scheduler)
    assert len(request.output_token_ids) == 3
    assert request.status is EngineRequestStatus.FINISHED_LENGTH_CAPPED


def test_a_pool_of_4_pages_of_4_ends_a_request_alone_in_it_at_17_tokens() -> None:
    scheduler = make_scheduler(num_pages=5, page_size=4)
    request = make_request("a", [1] * 10, max_tokens=100)
    add(scheduler, request)
    while scheduler.has_unfinished_requests():
        assert step(scheduler).preempted_req_ids == set()
    assert request.num_tokens == 17  # the last token is never computed
    assert request.status is EngineRequestStatus.FINISHED_LENGTH_CAPPED


def test_max_tokens_0_computes_the_prompt_in_chunks_and_generates_nothing() -> None:
    scheduler = make_scheduler(budget=8)
    add(scheduler, make_request("a", [1] * 20, max_tokens=0))
    for count in (8, 8):
        output = scheduler.schedule()
        assert output.num_scheduled_tokens == {"a": count}
        assert update(scheduler, output, {}) == {}
    ended = update(scheduler, scheduler.schedule(), {"a": [5]})["a"]
    assert (ended.new_token_ids, ended.finish_reason) == ([], FinishReason.LENGTH)
    assert not scheduler.has_unfinished_requests()


def test_max_tokens_0_ends_with_the_last_chunk_though_a_later_step_is_scheduled_already() -> None:
    scheduler = make_scheduler(budget=8, async_scheduling=True)
    add(scheduler, make_request("a", [1] * 12, max_tokens=0))
    first, second = scheduler.schedule(), scheduler.schedule()
    assert update(scheduler, first, {}) == {}
    assert update(scheduler, second, {"a": [5]})["a"].finish_reason is FinishReason.LENGTH


def scored(output: object, request_id: str, count: int) -> ModelRunnerOutput:
    positions = [TokenLogprobs(token_id=i, logprob=-1.0, rank=1) for i in range(count)]
    return ModelRunnerOutput([request_id], {request_id: 0}, [[]], prompt_logprobs_dict={request_id: positions})


def test_prompt_logprobs_are_handed_out_as_chunks_are_computed_and_no_hit_skips_them() -> None:
    scheduler = make_scheduler(budget=32)
    add(scheduler, *make_requests(1, num_tokens=64))
    step(scheduler)
    step(scheduler)
    scheduler.finish_requests("0", EngineRequestStatus.FINISHED_ABORTED)
    prompt = [0] * 64  # all of it is cached
    add(scheduler, EngineRequest("a", prompt, SamplingParams(max_tokens=0, prompt_logprobs=0)))
    for count in (32, 31):
        output = scheduler.schedule()
        assert output.num_scheduled_tokens == {"a": 32}
        (ended,) = scheduler.update_from_output(output, scored(output, "a", count))[0].outputs
        assert len(ended.new_prompt_logprobs or []) == count
    assert (ended.finish_reason, ended.num_cached_tokens) == (FinishReason.LENGTH, 0)


def test_prompt_logprobs_that_were_handed_out_before_a_preemption_are_not_again() -> None:
    scheduler = make_scheduler(budget=12)
    request = EngineRequest("b", [2] * 20, SamplingParams(max_tokens=0, prompt_logprobs=0))
    add(scheduler, request)
    received = []
    for num_scored, is_preempted in ((12, True), (12, False), (7, False)):  # none follows the last in the prompt
        output = scheduler.schedule()
        for outputs in scheduler.update_from_output(output, scored(output, "b", num_scored)).values():
            received.append(len(outputs.outputs[0].new_prompt_logprobs or []))
        if is_preempted:
            scheduler._preempt(request)
    assert received == [12, 7]
    assert request.status is EngineRequestStatus.FINISHED_LENGTH_CAPPED


def test_logprobs_are_cut_with_the_tokens_at_a_stop() -> None:
    scheduler = make_scheduler()
    add(scheduler, request_with())
    output = scheduler.schedule()
    logprobs = [[TokenLogprobs(token, -1.0, 1) for token in (10, EOS, 12)]]
    answer = ModelRunnerOutput(["a"], {"a": 0}, [[10, EOS, 12]], logprobs=logprobs)
    (ended,) = scheduler.update_from_output(output, answer)[0].outputs
    assert ended.new_token_ids == [10, EOS]
    assert [entry.token_id for entry in ended.new_logprobs or []] == [10, EOS]
