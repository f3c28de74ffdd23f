"""Steps scheduled before the tokens of the step before are known: the same rows."""

from __future__ import annotations

import numpy as np
import pytest
from reference import Reference, generate

from runner import eSurgeRunner
from scheduler import SamplingParams

OPTIONS = {"max_num_seqs": 4, "max_num_batched_tokens": 48, "max_model_len": 128, "page_size": 4}


@pytest.mark.parametrize("num_pages", [400, 70], ids=["roomy", "preempting"])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, logprobs=2),
        SamplingParams(temperature=1.0, max_tokens=30, seed=5, stop_token_ids=list(range(3, 20))),
    ],
    ids=["greedy", "sampled with stops"],
)
def test_the_rows_are_those_of_the_synchronous_loop(tiny_checkpoint, params, num_pages):
    folder = tiny_checkpoint("gemma3_text")
    rng = np.random.default_rng(4)
    prompts = [rng.integers(3, 320, length).tolist() for length in (50, 7, 61, 33, 20, 12, 90, 5)]
    runs = []
    for is_async in (False, True):
        runner = eSurgeRunner.from_pretrained(folder, num_pages=num_pages, **OPTIONS)
        runs.append(generate(runner, prompts, params, async_scheduling=is_async, max_num_batched_tokens=48))
    synchronous, ahead = runs
    assert [r.token_ids for r in ahead.results] == [r.token_ids for r in synchronous.results]
    assert [r.finish_reason for r in ahead.results] == [r.finish_reason for r in synchronous.results]
    if num_pages == 70:
        assert ahead.num_preemptions > 0
    if params.temperature == 0:
        reference = Reference(folder)
        for prompt, result in zip(prompts, ahead.results, strict=True):
            reference.check_greedy(prompt, result)
