"""Which parameters are in force: row, flag, generation_config.json, defaults."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from esurge_cli.rows.row import ErrorType, RowFault
from esurge_cli.sampling import MAX_LOGPROBS, SamplingDefaults, ignored_of_model
from scheduler import SamplingParams


def params(
    row: dict[str, Any], flags: dict[str, Any] | None = None, model: dict[str, Any] | None = None, index: int = 0
):
    return SamplingDefaults.of(flags or {}, model or {}, seed=0).params_for(row, index)


def fault(row: dict[str, Any]) -> RowFault:
    with pytest.raises(RowFault) as caught:
        params(row)
    return caught.value


def test_the_defaults() -> None:
    got = params({})
    assert (got.temperature, got.max_tokens, got.top_p, got.top_k, got.n) == (1.0, 512, 1.0, 0, 1)


def test_a_row_wins_over_a_flag_that_over_the_model_and_that_over_the_default() -> None:
    model = {"temperature": 0.1, "top_p": 0.2, "top_k": 30, "max_new_tokens": 40, "do_sample": True}
    flags = {"temperature": 0.3, "top_p": 0.4}
    got = params({"temperature": 0.5}, flags, model)
    assert (got.temperature, got.top_p, got.top_k, got.max_tokens) == (0.5, 0.4, 30, 40)


def test_every_parameter_of_a_row() -> None:
    row = {
        "n": 2,
        "max_tokens": 9,
        "min_tokens": 1,
        "temperature": 0.5,
        "top_p": 0.6,
        "top_k": 7,
        "min_p": 0.1,
        "seed": 3,
        "stop": ["a", "b"],
        "stop_token_ids": [5],
        "ignore_eos": True,
        "logprobs": 4,
    }
    assert params(row) == SamplingParams(**row)


def test_a_top_k_beyond_every_vocabulary_is_what_the_sampler_can_hold() -> None:
    assert params({"top_k": 1e30}).top_k == np.iinfo(np.int32).max
    assert params({"max_tokens": 1e30}).max_tokens == int(1e30)  # which the context clamps


def test_null_is_not_given() -> None:
    assert params({"temperature": None, "stop": None, "logprobs": None}, {"temperature": 0.5}).temperature == 0.5


def test_openais_other_spellings() -> None:
    assert params({"max_completion_tokens": 8}).max_tokens == 8
    assert params({"stop": "x"}).stop == ["x"]
    assert params({"logprobs": True}).logprobs == 0
    assert params({"logprobs": True, "top_logprobs": 3}).logprobs == 3
    assert params({"logprobs": False}, {"logprobs": 3}).logprobs == 3
    assert params({"max_tokens": 16.0}).max_tokens == 16  # what data frames make of a column with gaps


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"temperature": "0.5"}, "temperature must be a number, not '0.5'"),
        ({"temperature": True}, "temperature must be a number, not True"),
        ({"temperature": -1}, "temperature must be between 0 and"),
        ({"temperature": float("nan")}, "temperature must be a number, not nan"),
        ({"temperature": float("inf")}, "temperature must be a number, not inf"),
        ({"top_p": 0}, "top_p must be above 0"),
        ({"top_p": 1.5}, "top_p must be between 0 and 1"),
        ({"top_k": -2}, "top_k must be at least -1"),
        ({"min_p": 2}, "min_p must be between 0 and 1"),
        ({"max_tokens": -1}, "max_tokens must be at least 0"),
        ({"max_tokens": 1.5}, "max_tokens must be a whole number, not 1.5"),
        ({"max_tokens": "9"}, "max_tokens must be a whole number, not '9'"),
        ({"max_tokens": 1, "max_completion_tokens": 1}, "are both given"),
        ({"max_tokens": 4, "min_tokens": 5}, "min_tokens 5 is more than max_tokens 4"),
        ({"n": 0}, "n must be at least 1"),
        ({"n": True}, "n must be a whole number, not True"),
        ({"n": 16_385}, "n must be at most 16384, not 16385"),
        ({"n": 1e300}, "n must be at most 16384"),
        ({"seed": 1 << 64}, "seed must fit in 64 bits"),
        ({"stop": ""}, "stop must be a string that is not empty"),
        ({"stop": [1]}, "stop must be a string"),
        ({"stop_token_ids": 5}, "stop_token_ids must be a list"),
        ({"ignore_eos": 1}, "ignore_eos must be true or false"),
        ({"logprobs": 21}, "logprobs must be at most 20"),
        ({"top_logprobs": 2}, "top_logprobs needs logprobs to be true"),
        ({"presence_penalty": 2.5}, "presence_penalty must be between -2 and 2"),
        ({"repetition_penalty": 0}, "repetition_penalty must be above 0"),
        ({"logit_bias": [1]}, "logit_bias must be an object of token ids and numbers"),
        ({"logit_bias": {"a": 1}}, "logit_bias must be an object of token ids and numbers"),
        ({"logit_bias": {"1": 101}}, "logit_bias must be between -100 and 100"),
        ({"logit_bias": {str(i): 1 for i in range(301)}}, "logit_bias may name 300 tokens at most"),
        ({"bad_words": [""]}, "bad_words must be a string that is not empty"),
        ({"allowed_token_ids": []}, "allowed_token_ids must name a token"),
    ],
)
def test_a_wrong_type_or_range_is_a_fault(row: dict[str, Any], message: str) -> None:
    got = fault(row)
    assert got.type is ErrorType.INVALID_PARAMETER
    assert message in str(got)


@pytest.mark.parametrize(
    "row",
    [
        {"guided_decoding": {"regex": "a"}},
        {"response_format": {"type": "json_object"}},
        {"best_of": 2},
        {"tool_choice": "required"},
    ],
)
def test_what_is_not_supported_is_refused_by_name(row: dict[str, Any]) -> None:
    got = fault(row)
    assert got.type is ErrorType.UNSUPPORTED_PARAMETER
    assert str(got) == f"not supported yet: {next(iter(row))}"


def test_what_is_not_supported_may_be_asked_for_nothing() -> None:
    params(
        {
            "response_format": {"type": "text"},
            "prompt_logprobs": None,
            "skip_special_tokens": True,
            "tool_choice": "auto",
        }
    )


def test_the_models_own_that_are_not_supported_are_told_of() -> None:
    assert ignored_of_model({"best_of": 2, "temperature": 0.7}) == ["best_of 2"]
    assert ignored_of_model({"best_of": 1}) == []


def test_a_flag_out_of_range_is_an_error_at_once() -> None:
    with pytest.raises(ValueError, match="top_p must be between 0 and 1"):
        SamplingDefaults.of({"top_p": 2.0}, {})


def test_seeds_derive_from_the_flag_and_the_rows_index_alone() -> None:
    digest = hashlib.blake2b(b"5/12", digest_size=8).digest()
    defaults = SamplingDefaults.of({}, {}, seed=5)
    assert defaults.params_for({}, 12).seed == int.from_bytes(digest, "big")
    assert defaults.params_for({"seed": 3}, 12).seed == 3
    assert defaults.params_for({"seed": -1}, 12).seed == (1 << 64) - 1


def test_the_rows_of_a_run_do_not_share_lists() -> None:
    defaults = SamplingDefaults.of({"stop": ["a"]}, {})
    assert defaults.params_for({}, 0).stop == defaults.params_for({}, 1).stop == ["a"]


def test_the_header_says_what_is_in_force() -> None:
    assert (
        SamplingDefaults.of({"top_p": 0.5}, {"temperature": 0.6}).describe()
        == "temperature 0.6  max_tokens 512  top_p 0.5"
    )


def test_the_limit_of_logprobs_is_the_samplers() -> None:
    from runner.sampler import MAX_LOGPROBS as OF_THE_SAMPLER

    assert MAX_LOGPROBS == OF_THE_SAMPLER
