"""Log-probabilities of prompts, beside transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from reference import Reference, generate

from runner import eSurgeRunner
from scheduler import SamplingParams

PROMPTS = [list(range(5, 150)), [7, 8, 9], list(range(5, 60)), [4], list(range(5, 150))]
OPTIONS = {"max_num_seqs": 4, "max_model_len": 256, "num_pages": 100}


@pytest.mark.parametrize(
    ("budget", "options"),
    [(256, {}), (16, {}), (64, {"num_pages": 21}), (64, {"async_scheduling": True})],
    ids=["whole", "chunked", "preempted", "async"],
)
def test_every_token_of_a_prompt_but_the_first_is_scored_once(
    tiny_checkpoint: Any, budget: int, options: dict[str, Any]
) -> None:
    """Rows that are scored alone, rows that go on, and one that asks for neither; the last finds its prompt cached."""
    folder = tiny_checkpoint("llama")
    pages = {name: value for name, value in options.items() if name == "num_pages"}
    runner = eSurgeRunner.from_pretrained(folder, **(OPTIONS | pages), max_num_batched_tokens=budget)
    reference = Reference(folder)
    params = [
        SamplingParams(temperature=0, max_tokens=max_tokens, prompt_logprobs=k)
        for max_tokens, k in ((0, 5), (6, 0), (8, None), (0, 3), (4, 2))
    ]
    scheduling = {name: value for name, value in options.items() if name != "num_pages"}
    run = generate(runner, PROMPTS, params, max_num_batched_tokens=budget, **scheduling)
    for prompt, one, result in zip(PROMPTS, params, run.results, strict=True):
        assert len(result.token_ids) == one.max_tokens
        if one.prompt_logprobs is None:
            assert result.prompt_logprobs == []
            continue
        assert [scored.token_id for scored in result.prompt_logprobs] == prompt[1:]
        if len(prompt) > 1:
            check(reference.logprobs(prompt[:1], prompt[1:]), result.prompt_logprobs, one.prompt_logprobs)


def check(exact: np.ndarray, scored: list[Any], num_logprobs: int) -> None:
    for row, token in zip(exact, scored, strict=True):
        assert token.logprob == pytest.approx(row[token.token_id], abs=2e-3)
        assert abs(token.rank - 1 - int((row > row[token.token_id]).sum())) <= 1  # but for near ties
        np.testing.assert_allclose(token.top_logprobs, np.sort(row)[::-1][:num_logprobs], atol=2e-3)
