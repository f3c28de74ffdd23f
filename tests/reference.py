"""The truth about tokens: transformers on torch, in float32; and the loop that is held to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from runner import eSurgeRunner
from scheduler import EngineRequest, ModelRunnerOutput, SamplingParams, Scheduler, SchedulerOutput
from scheduler.output import TokenLogprobs

NEAR_TIE = 1e-3
"""Where the reference's best two logits are this close, either token is right, and what follows is not compared."""


@dataclass
class Generated:
    """One request's result."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    num_cached_tokens: int = 0


@dataclass
class Run:
    """What a loop made of its prompts, and how."""

    results: list[Generated]
    num_preemptions: int
    num_steps: int
    num_drafts: int


def generate(
    runner: eSurgeRunner,
    prompts: list[list[int]],
    params: SamplingParams | list[SamplingParams],
    *,
    together: bool = True,
    **options: Any,
) -> Run:
    """Complete prompts, all at once or one after another; `options` are Scheduler.from_runner's.

    `params` are of all prompts, or of each.
    """
    scheduler = Scheduler.from_runner(runner, **options)
    num_ahead = 1 if options.get("async_scheduling") else 0
    in_flight: deque[tuple[SchedulerOutput, Callable[[], ModelRunnerOutput]]] = deque()
    results = [Generated() for _ in prompts]
    num_steps = num_preemptions = num_drafts = 0
    for batch in [list(enumerate(prompts))] if together else [[item] for item in enumerate(prompts)]:
        for i, prompt in batch:
            of_prompt = params[i] if isinstance(params, list) else params
            scheduler.add_request(EngineRequest(str(i), prompt, of_prompt))
        while scheduler.get_num_unfinished_requests():
            scheduler_output = scheduler.schedule()
            in_flight.append((scheduler_output, runner.dispatch(scheduler_output)))
            num_preemptions += len(scheduler_output.preempted_req_ids)
            num_drafts += sum(map(len, scheduler_output.scheduled_spec_decode_tokens.values()))
            num_steps += 1
            if len(in_flight) <= num_ahead:
                continue
            scheduler_output, collect = in_flight.popleft()
            for outputs in scheduler.update_from_output(scheduler_output, collect()).values():
                for output in outputs.outputs:
                    result = results[int(output.request_id)]
                    result.token_ids += output.new_token_ids
                    result.logprobs += output.new_logprobs or []
                    result.prompt_logprobs += output.new_prompt_logprobs or []
                    result.finish_reason = output.finish_reason
                    result.num_cached_tokens = output.num_cached_tokens
    runner.run(scheduler.schedule())  # tells the runner of the last that ended
    return Run(results, num_preemptions, num_steps, num_drafts)


class Reference:
    """A checkpoint in transformers."""

    def __init__(self, folder: Path) -> None:
        # "eager" is the implementation that knows every kind of attention (the default one ignores soft caps)
        self.model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        self._cache: dict[tuple[int, ...], np.ndarray] = {}

    def logprobs(self, prompt: list[int], output: list[int]) -> np.ndarray:
        """Log-probabilities of every token at each position of the output, float32 [len(output), vocab]."""
        logits = torch.from_numpy(self.logits(prompt, output))
        return torch.log_softmax(logits, dim=-1).numpy()

    def logits(self, prompt: list[int], output: list[int]) -> np.ndarray:
        """What they are made of, float32 [len(output), vocab]."""
        key = (*prompt, *output)
        if key not in self._cache:
            with torch.no_grad():
                self._cache[key] = self.model(torch.tensor([key])).logits[0, len(prompt) - 1 : -1].numpy()
        return self._cache[key]

    def check_greedy(self, prompt: list[int], result: Generated, *, tolerance: float = 2e-3) -> int:
        """Assert that the tokens are the greedy ones, their log-probabilities right; returns how many it compared."""
        exact = self.logprobs(prompt, result.token_ids)
        for i, token in enumerate(result.token_ids):
            second, best = np.sort(exact[i])[-2:]
            if best - second < NEAR_TIE:
                return i
            assert token == exact[i].argmax(), f"token {i} of the output of a prompt of {len(prompt)}"
            if result.logprobs:
                self._check_logprobs(exact[i], result.logprobs[i], tolerance)
        return len(result.token_ids)

    @staticmethod
    def _check_logprobs(exact: np.ndarray, got: TokenLogprobs, tolerance: float) -> None:
        assert got.logprob == pytest.approx(exact[got.token_id], abs=tolerance)
        assert got.rank == 1
        np.testing.assert_allclose(got.top_logprobs, np.sort(exact)[::-1][: len(got.top_logprobs)], atol=tolerance)
        np.testing.assert_allclose(got.top_logprobs, exact[got.top_token_ids], atol=tolerance)
