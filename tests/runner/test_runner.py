"""The runner's own promises, on a tiny model."""

from __future__ import annotations

import weakref

import jax
import pytest
from reference import generate

from runner import eSurgeRunner
from runner.errors import DeviceError, UserError
from scheduler import FinishReason, SamplingParams

OPTIONS = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 128, "num_pages": 100}
PROMPTS = [[5, 6, 7, 8], list(range(3, 60)), [9] * 20]


@pytest.fixture(scope="module")
def folder(tiny_checkpoint):
    return tiny_checkpoint("llama")


def test_after_warm_up_no_step_compiles(folder):
    runner = eSurgeRunner.from_pretrained(folder, **OPTIONS)
    runner.warm_up(64)
    # steps of 8, 16, 32 and 64 tokens, and one sampler: four sequences are never padded beyond 8
    assert runner.num_compilations == 5
    for temperature, logprobs in ((0, None), (0.9, None), (1.0, 5)):
        params = SamplingParams(temperature=temperature, top_p=0.9, top_k=5, logprobs=logprobs, max_tokens=8)
        generate(runner, PROMPTS, params, max_num_batched_tokens=64)
    assert runner.num_compilations == 5


def test_a_step_does_not_move_the_pool(folder):
    runner = eSurgeRunner.from_pretrained(folder, **OPTIONS)
    before = [pool.unsafe_buffer_pointer() for pool in runner._cache]
    generate(runner, PROMPTS, SamplingParams(max_tokens=8), max_num_batched_tokens=64)
    assert [pool.unsafe_buffer_pointer() for pool in runner._cache] == before


def test_a_runner_that_nobody_uses_is_gone_at_once(folder):
    """Its pool may be gigabytes: it must not wait for the garbage collector."""
    runner = eSurgeRunner.from_pretrained(folder, **OPTIONS)
    generate(runner, PROMPTS, SamplingParams(max_tokens=2), max_num_batched_tokens=64)
    pool = weakref.ref(runner._cache.keys)
    del runner
    assert pool() is None


def test_a_second_scheduler_may_reuse_names(folder):
    runner = eSurgeRunner.from_pretrained(folder, **OPTIONS)
    params = SamplingParams(temperature=0, max_tokens=5)
    first = generate(runner, PROMPTS, params, max_num_batched_tokens=64)
    second = generate(runner, PROMPTS, params, max_num_batched_tokens=64)
    assert [r.token_ids for r in first.results] == [r.token_ids for r in second.results]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_model_len": 1000}, "--max-model-len 1000 is beyond the 512 positions of this model"),
        ({"num_pages": 5}, "the longest that fits is 64 tokens"),
        ({"dtype": "float8"}, "--dtype must be auto, float32, bfloat16, float16; not 'float8'"),
        ({"page_size": 0}, "--page-size must be at least 1, not 0"),
    ],
)
def test_what_cannot_be_honoured_is_one_line(folder, options, message):
    with pytest.raises(UserError, match=message):
        eSurgeRunner.from_pretrained(folder, **(OPTIONS | options))


def test_an_unknown_architecture_is_named_with_those_that_are_known(tiny_checkpoint):
    folder = tiny_checkpoint("olmo")
    with pytest.raises(UserError, match=r"the architecture 'olmo' is not supported; supported are: gemma2, gemma3"):
        eSurgeRunner.from_pretrained(folder, **OPTIONS)


@pytest.mark.parametrize("options", [{"guided_decoding": {"regex": "a"}}, {"bad_words": ["a"]}])
def test_a_parameter_that_would_be_ignored_is_refused(folder, options):
    runner = eSurgeRunner.from_pretrained(folder, **OPTIONS)
    with pytest.raises(ValueError, match=next(iter(options))):
        generate(runner, PROMPTS, SamplingParams(**options))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_and_pages_of_half_the_size_run(folder, dtype):
    runner = eSurgeRunner.from_pretrained(folder, dtype=dtype, **OPTIONS)
    run = generate(runner, PROMPTS, SamplingParams(temperature=0, max_tokens=5), max_num_batched_tokens=64)
    assert [len(r.token_ids) for r in run.results] == [5, 5, 5]


def test_a_request_whose_output_is_no_number_ends_as_an_error_and_harms_no_other(folder):
    """The embedding of token 9 is spoilt, which only the last of the prompts has."""
    prompts = [[5, 6, 7, 8], list(range(10, 60)), [9] * 20]
    runner = eSurgeRunner.from_pretrained(folder, **OPTIONS)
    assert not runner.config.tie_word_embeddings
    params = SamplingParams(temperature=0, max_tokens=6)
    sound = generate(runner, prompts[:2], params, max_num_batched_tokens=64)
    assert all(9 not in result.token_ids for result in sound.results)
    runner._params["embedding"] = runner._params["embedding"].at[0, 9].set(float("nan"))
    spoilt = generate(runner, prompts, params, max_num_batched_tokens=64)
    assert [result.token_ids for result in spoilt.results] == [*(result.token_ids for result in sound.results), []]
    assert [result.finish_reason for result in spoilt.results][2] is FinishReason.ERROR


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory"), "no memory left for a step of 8 tokens"),
        (ValueError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes."), "no memory left for a step of 8 tokens"),
        (jax.errors.JaxRuntimeError("INTERNAL: it broke"), "the device has failed: INTERNAL: it broke"),
    ],
)
def test_what_the_device_says_is_said_in_a_line(folder, monkeypatch, error, message):
    runner = eSurgeRunner.from_pretrained(folder, **OPTIONS)

    def fail(*arguments):
        raise error

    monkeypatch.setattr(runner._programs, "get", lambda kind, size: fail)
    with pytest.raises(DeviceError, match=message):
        generate(runner, PROMPTS[:1], SamplingParams(max_tokens=2), max_num_batched_tokens=64)
