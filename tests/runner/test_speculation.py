"""Draft tokens change how many steps a text takes, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from reference import Reference, generate

from runner import eSurgeRunner
from scheduler import SamplingParams

OPTIONS = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 128, "num_pages": 200}


@pytest.fixture(scope="module")
def folder(tiny_checkpoint):
    return tiny_checkpoint("gemma3_text")


def prompts_that_repeat():
    rng = np.random.default_rng(4)
    return [rng.integers(3, 320, 6).tolist() * 5 for _ in range(4)]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0, max_tokens=48, ignore_eos=True, logprobs=2),
        SamplingParams(temperature=0.2, max_tokens=48, ignore_eos=True, seed=7),
    ],
    ids=["greedy", "sampled"],
)
def test_the_text_is_the_same_with_and_without_drafts(folder, params):
    prompts = prompts_that_repeat()
    plain = generate(eSurgeRunner.from_pretrained(folder, **OPTIONS), prompts, params)
    runner = eSurgeRunner.from_pretrained(folder, num_speculative_tokens=4, **OPTIONS)
    drafted = generate(runner, prompts, params, num_speculative_tokens=4)
    assert [r.token_ids for r in drafted.results] == [r.token_ids for r in plain.results]
    assert drafted.num_drafts > 0
    assert drafted.num_steps < plain.num_steps
    if params.temperature == 0:
        reference = Reference(folder)
        for prompt, result in zip(prompts, drafted.results, strict=True):
            assert reference.check_greedy(prompt, result) > 0


def test_drafts_stop_at_the_end_of_the_text(folder):
    """max_tokens inside of what a step accepts."""
    runner = eSurgeRunner.from_pretrained(folder, num_speculative_tokens=4, **OPTIONS)
    params = SamplingParams(temperature=0, max_tokens=37, ignore_eos=True)
    run = generate(runner, prompts_that_repeat(), params, num_speculative_tokens=4)
    assert [len(result.token_ids) for result in run.results] == [37] * 4
    assert {result.finish_reason for result in run.results} == {"length"}
