"""Masks, biases and penalties: by hand, beside a float64 model, and through the runner beside transformers' logits."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from reference import Reference, generate

from runner import eSurgeRunner
from runner.adjusting import Adjuster
from runner.processors import adjust, remember
from scheduler import NewRequestData, SamplingParams

VOCAB = 70
OPTIONS = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 128, "num_pages": 100}


def adjusted(logits: list[float], prompt: list[int], output: list[int], **params: Any) -> np.ndarray:
    """The logits of one request's next token, as the runner would make them."""
    stop_ids = params.pop("stop_ids", [])
    adjuster = Adjuster(2, VOCAB)
    request = NewRequestData("r", prompt, SamplingParams(**params), ([],), 0, stop_token_ids=stop_ids)
    ids = np.array([*prompt, *output], np.int32)
    adjuster.begin(1, request, ids)
    table = np.zeros((2, 64), np.int32)
    table[1, : len(ids)] = ids
    found = adjuster.gather(np.array([1]), np.array([len(ids)]), 3, table, np.array([0, len(ids)]))
    rows = jnp.zeros((3, VOCAB)).at[0, : len(logits)].set(jnp.array(logits))
    if found is None:
        return np.asarray(rows[0, : len(logits)])
    return np.asarray(adjust(rows, found, adjuster.history.take()))[0, : len(logits)]  # type: ignore[arg-type]


def test_a_request_without_wishes_has_no_adjustments() -> None:
    adjuster = Adjuster(2, VOCAB)
    adjuster.begin(0, NewRequestData("r", [1], SamplingParams(), ([],), 0), np.array([1], np.int32))
    assert adjuster.gather(np.array([0]), np.array([1]), 2, np.zeros((2, 8), np.int32), np.array([1, 0])) is None


def test_penalties_by_hand() -> None:
    """Token 0 in the prompt, 1 twice and 2 once in the output, 3 nowhere."""
    logits, prompt, output = [2.0, 2.0, -2.0, 2.0], [0], [1, 2, 1]
    assert adjusted(logits, prompt, output, presence_penalty=0.5).tolist() == [2.0, 1.5, -2.5, 2.0]
    assert adjusted(logits, prompt, output, frequency_penalty=0.5).tolist() == [2.0, 1.0, -2.5, 2.0]
    assert adjusted(logits, prompt, output, repetition_penalty=2.0).tolist() == [1.0, 1.0, -4.0, 2.0]
    assert adjusted(logits, prompt, output, presence_penalty=-1, repetition_penalty=0.5).tolist() == [4, 5, 0, 2]


def test_masks_by_hand() -> None:
    inf = float("inf")
    logits = [0.0, 1.0, 2.0, 3.0]
    assert adjusted(logits, [0], [], allowed_token_ids=[1, 3]).tolist() == [-inf, 1.0, -inf, 3.0]
    assert adjusted(logits, [0], [], logit_bias={1: 5.0, 2: -100.0}).tolist() == [0.0, 6.0, -98.0, 3.0]
    assert adjusted(logits, [0], [1], min_tokens=2, stop_ids=[3]).tolist() == [0.0, 1.0, 2.0, -inf]
    assert adjusted(logits, [0], [1, 2], min_tokens=2, stop_ids=[3]).tolist() == logits


@pytest.mark.parametrize(
    ("output", "banned"), [([], {2}), ([1], {2, 3}), ([0, 1], {2, 3, 0}), ([1, 0], {2}), ([0, 0, 1], {2, 3, 0})]
)
def test_bad_words_of_one_token_and_of_several(output: list[int], banned: set[int]) -> None:
    """2 alone, 3 after 1, and 0 after 0, 1, of which nothing in the prompt counts."""
    words = [[2], [1, 3], [0, 1, 0]]
    found = adjusted([0.0] * 4, [0, 1], output, bad_words=["x"], bad_words_token_ids=words)
    assert set(np.flatnonzero(np.isinf(found)).tolist()) == banned


def model(logits: np.ndarray, prompt: list[int], output: list[int], params: SamplingParams) -> np.ndarray:
    """The same in float64, a token at a time."""
    out = logits.astype(np.float64).copy()
    for token in range(len(out)):
        if params.allowed_token_ids is not None and token not in params.allowed_token_ids:
            out[token] = -np.inf
        out[token] += (params.logit_bias or {}).get(token, 0.0)
        if token in prompt or token in output:
            out[token] *= params.repetition_penalty if out[token] <= 0 else 1 / params.repetition_penalty
        count = output.count(token)
        out[token] -= params.frequency_penalty * count + params.presence_penalty * (count > 0)
    return out


def test_all_at_once_beside_the_model() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        prompt, output = random.integers(0, VOCAB, 9).tolist(), random.integers(0, VOCAB, 12).tolist()
        params = {
            "presence_penalty": float(random.uniform(-2, 2)),
            "frequency_penalty": float(random.uniform(-2, 2)),
            "repetition_penalty": float(random.uniform(0.5, 2)),
            "logit_bias": {int(token): float(random.uniform(-5, 5)) for token in random.integers(0, VOCAB, 5)},
            "allowed_token_ids": random.permutation(VOCAB)[:50].tolist(),
        }
        logits = random.normal(size=VOCAB).astype(np.float32)
        found = adjusted(logits.tolist(), prompt, output, **params)
        np.testing.assert_allclose(found, model(logits, prompt, output, SamplingParams(**params)), atol=1e-5)


def test_what_is_drawn_is_remembered_and_a_row_that_is_begun_anew_is_not() -> None:
    adjuster = Adjuster(2, VOCAB)
    params = SamplingParams(frequency_penalty=1.0)
    adjuster.begin(0, NewRequestData("a", [5], params, ([],), 0), np.array([5], np.int32))
    found = adjuster.gather(np.array([0]), np.array([1]), 2, np.zeros((2, 8), np.int32), np.array([1, 0]))
    history = remember(adjuster.history.take(), found, jnp.array([7, -1]))  # type: ignore[arg-type]
    assert history[0, [5, 7]].tolist() == [1, 2]
    adjuster.history.put(history)
    adjuster.begin(0, NewRequestData("b", [6], params, ([],), 0), np.array([6, 9, 9], np.int32))
    assert np.flatnonzero(adjuster.history.take()[0]).tolist() == [6, 9]


CASES = [
    {"repetition_penalty": 1.5},
    {"presence_penalty": 1.5, "frequency_penalty": 0.7},
    {"logit_bias": {7: 3.0, 9: -100.0}},
    {"allowed_token_ids": [3, 50, 51, 200]},
    {},
]


@pytest.fixture(scope="module")
def folder(tiny_checkpoint: Any) -> Any:
    return tiny_checkpoint("llama")


@pytest.mark.parametrize("options", [{}, {"async_scheduling": True}, {"num_pages": 14}], ids=["", "async", "preempted"])
def test_rows_of_one_batch_each_get_their_own(folder: Any, options: dict[str, Any]) -> None:
    """Greedy rows beside the logits of transformers, adjusted by the model; the last row asks for nothing."""
    runner = eSurgeRunner.from_pretrained(folder, **(OPTIONS | {k: v for k, v in options.items() if k == "num_pages"}))
    reference = Reference(folder)
    prompts = [[5, 6, 7, 5, 6], list(range(20, 45)), [9] * 12, [40, 41], [5, 6, 7, 5, 6]]
    params = [SamplingParams(temperature=0, max_tokens=20, **case) for case in CASES]
    scheduling = {k: v for k, v in options.items() if k != "num_pages"}
    run = generate(runner, prompts, params, max_num_batched_tokens=64, **scheduling)
    for prompt, one, result in zip(prompts, params, run.results, strict=True):
        exact = reference.logits(prompt, result.token_ids)
        for i, token in enumerate(result.token_ids):
            wanted = model(exact[i], prompt, result.token_ids[:i], one)
            assert wanted[token] >= wanted.max() - 1e-3
        assert len(result.token_ids) == 20
