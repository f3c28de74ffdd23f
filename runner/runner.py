"""The runner: a checkpoint on a device, and one step of it at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from runner.attention import best_attention
from runner.batch import Batch, Scored, Step
from runner.cpus import limit_xla_threads
from runner.drafts import PromptLookup
from runner.dtypes import DTYPES
from runner.errors import DeviceError
from runner.linear import best_linear
from runner.models.config import DecoderConfig
from runner.models.families import decoder_config
from runner.models.params import load_params, params_shape
from runner.options import EnginePlan, RunnerOptions, plan_engine
from runner.programs import bucket_of, enable_compilation_cache, token_buckets
from runner.progress import Progress, no_progress
from runner.sampler import NO_TOKEN, Sampled
from runner.step import step_programs
from runner.weights.checkpoint import Checkpoint, open_checkpoint
from scheduler import CacheGroupsConfig, ModelRunnerOutput, SchedulerOutput
from scheduler.output import TokenLogprobs

_SCORED_AT_ONCE = 128
"""Prompt tokens whose distribution over the vocabulary is held at once."""


class eSurgeRunner:
    """Owns the weights, the KV cache and the compiled steps of one model.

    `run` must be given every step of one scheduler, in order: the runner keeps each request's tokens, pages and
    sampling parameters between steps, and is told only of what changed.
    """

    def __init__(
        self, checkpoint: Checkpoint, config: DecoderConfig, plan: EnginePlan, progress: Progress, *, warm_up: bool
    ) -> None:
        self.checkpoint = checkpoint
        self.config = config
        self.plan = plan
        attention = best_attention(plan.kv_cache_dtype)
        linear = best_linear(plan.dtype)
        shape = params_shape(config, checkpoint, linear)
        self._cache = attention.empty_cache(
            plan.layout.num_buffers,
            plan.layout.num_pages,
            plan.layout.page_size,
            config.num_kv_heads,
            config.head_dim,
            DTYPES[plan.kv_cache_dtype],
        )
        self._batch = Batch(
            max_num_seqs=plan.max_num_seqs,
            max_model_len=plan.max_model_len,
            num_groups=len(plan.layout.groups.kv_cache_groups),
            page_size=plan.layout.page_size,
            vocab_size=config.vocab_size,
            default_seed=plan.seed,
        )
        self._lookup = PromptLookup(plan.num_speculative_tokens)
        self._latest = jnp.zeros(plan.max_num_samples, jnp.int32)
        self._programs = step_programs(config, plan, attention, linear, self._batch, shape, self._cache, self._latest)
        with ThreadPoolExecutor(1) as beside:
            compiling = beside.submit(self.warm_up, progress=progress) if warm_up else None
            self._params = load_params(config, checkpoint, linear, progress)
            if compiling is not None:
                compiling.result()

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path | None,
        *,
        revision: str | None = None,
        progress: Progress = no_progress,
        **options: Any,
    ) -> eSurgeRunner:
        """Load a Hugging Face folder, a GGUF file, a Hub id, or (None) the default model.

        `options` are the fields of RunnerOptions. Raises UserError where the model cannot be found, read or run.
        """
        return cls.from_checkpoint(open_checkpoint(model, revision, progress), RunnerOptions(**options), progress)

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: Checkpoint,
        options: RunnerOptions | None = None,
        progress: Progress = no_progress,
        *,
        warm_up: bool = False,
    ) -> eSurgeRunner:
        """Load the weights of a checkpoint that is open already; `warm_up` compiles beside it, in the same time."""
        limit_xla_threads()
        enable_compilation_cache()
        config = decoder_config(checkpoint.config)
        plan = plan_engine(config, options or RunnerOptions())
        return cls(checkpoint, config, plan, progress, warm_up=warm_up)

    @property
    def cache_groups(self) -> CacheGroupsConfig:
        return self.plan.layout.groups

    @property
    def max_model_len(self) -> int:
        return self.plan.max_model_len

    @property
    def max_num_seqs(self) -> int:
        return self.plan.max_num_seqs

    @property
    def max_num_batched_tokens(self) -> int:
        return self.plan.max_num_batched_tokens

    @property
    def page_size(self) -> int:
        return self.plan.layout.page_size

    @property
    def num_pages(self) -> int:
        return self.plan.layout.num_pages

    @property
    def num_compilations(self) -> int:
        """Programs compiled so far; it stands still once `warm_up` has covered the budget."""
        return self._programs.num_compilations

    @property
    def compile_seconds(self) -> float:
        """What `warm_up` has taken."""
        return self._programs.seconds

    def warm_up(self, max_num_batched_tokens: int | None = None, progress: Progress = no_progress) -> None:
        """Compile all that a step of up to `max_num_batched_tokens` tokens (default: the runner's limit) may need."""
        buckets = token_buckets(max_num_batched_tokens or self.max_num_batched_tokens)
        sizes = {self.plan.num_samples_of(bucket) for bucket in buckets}
        programs = [*(("forward", bucket) for bucket in buckets), *(("sample", size) for size in sizes)]
        self._programs.compile_all(programs, progress)

    def run(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        """Compute one step's tokens, and sample the next token of each request whose last one is among them."""
        return self.dispatch(scheduler_output)()

    def dispatch(self, scheduler_output: SchedulerOutput) -> Callable[[], ModelRunnerOutput]:
        """Start a step on the device and return at once, with what waits for its result.

        One more step may be dispatched before that is called (the scheduler's `async_scheduling`): the tokens that it
        continues stay on the device.
        """
        start = time.perf_counter()
        self._batch.apply(scheduler_output)
        for req_id in scheduler_output.finished_req_ids:
            self._lookup.forget(req_id)
        if not scheduler_output.num_scheduled_tokens:
            return lambda: ModelRunnerOutput(req_ids=[], req_id_to_index={}, sampled_token_ids=[])
        bucket = bucket_of(scheduler_output.total_num_scheduled_tokens)
        num_samples = self.plan.num_samples_of(bucket)
        step = self._batch.step(scheduler_output, bucket, self.plan.num_sequences_of(bucket), num_samples)
        forward = self._programs.get("forward", bucket)
        with _device_errors(bucket):
            last, states, self._cache = forward(self._params, self._cache, self._latest, step.tokens)
            sampled = self._sample(step, last)
            scores = None if step.scored is None else self._score(step.scored, states)
        is_decoding = scheduler_output.total_num_scheduled_tokens == step.num_samples.sum()
        return partial(self._collect, step, sampled, scores, is_decoding, start)

    def _sample(self, step: Step, hidden: jax.Array) -> Sampled:
        if step.adjustments is None:
            sample = self._programs.get("sample", len(hidden))
            sampled, self._latest = sample(self._params, hidden, step.sampling)
            return sampled
        sample, history = self._programs.get("adjusted", len(hidden)), self._batch.adjuster.history
        sampled, self._latest, updated = sample(self._params, hidden, step.sampling, step.adjustments, history.take())
        history.put(updated)
        return sampled

    def _score(self, scored: Scored, states: jax.Array) -> list[Sampled]:
        """The tokens' scores, _SCORED_AT_ONCE at a time, the last filled up."""
        score = self._programs.get("score", _SCORED_AT_ONCE)
        rows = np.asarray(states)[scored.places]
        scores = []
        for first in range(0, len(rows), _SCORED_AT_ONCE):
            part = np.zeros((_SCORED_AT_ONCE, rows.shape[1]), rows.dtype)
            token_ids = np.zeros(_SCORED_AT_ONCE, np.int32)
            chosen = slice(first, first + _SCORED_AT_ONCE)
            part[: len(rows[chosen])], token_ids[: len(rows[chosen])] = rows[chosen], scored.token_ids[chosen]
            scores.append(score(self._params, part, token_ids))
        return scores

    def _collect(
        self, step: Step, sampled: Sampled, scores: list[Sampled] | None, is_decoding: bool, start: float
    ) -> ModelRunnerOutput:
        with _device_errors(len(step.tokens.ids)):
            accepted = _accepted(step, np.asarray(sampled.token_id))
        if is_decoding:
            self._lookup.costs.observe(len(step.tokens.ids), time.perf_counter() - start)
        self._batch.append(step, accepted)
        return ModelRunnerOutput(
            req_ids=step.req_ids,
            req_id_to_index={req_id: i for i, req_id in enumerate(step.req_ids)},
            sampled_token_ids=accepted,
            spec_token_ids=self._propose(step, accepted, is_decoding),
            logprobs=_logprobs(step, sampled, accepted),
            prompt_logprobs_dict={} if scores is None else _prompt_logprobs(step, scores),
            errors={
                req_id: "the model's output for it is not a finite number"
                for req_id, tokens in zip(step.req_ids, accepted, strict=True)
                if NO_TOKEN in tokens
            },
        )

    def _propose(self, step: Step, accepted: list[list[int]], is_decoding: bool) -> list[list[int]] | None:
        """Drafts for the next step, for each request that sampled in this one."""
        if not self.plan.num_speculative_tokens:
            return None
        for req_id, drafts, tokens in zip(step.req_ids, step.drafts, accepted, strict=True):
            if drafts:
                self._lookup.observe(req_id, len(drafts), len(tokens) - 1)
        sampled = [
            req_id
            for req_id, tokens in zip(step.req_ids, accepted, strict=True)
            if tokens and not self._batch.is_adjusting(req_id)  # drafts would have to be adjusted one by one
        ]
        proposed = self._lookup.propose([(req_id, self._batch.token_ids_of(req_id)) for req_id in sampled], is_decoding)
        return [proposed.get(req_id, []) for req_id in step.req_ids]


@contextmanager
def _device_errors(num_tokens: int) -> Iterator[None]:
    """XLA's errors of a step of `num_tokens` as DeviceError."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:  # a ValueError where the call itself finds no memory
        reason = str(error).strip().partition("\n")[0]
        if "RESOURCE_EXHAUSTED" not in reason:
            if isinstance(error, ValueError):
                raise
            raise DeviceError(f"the device has failed: {reason}") from error
        raise DeviceError(
            f"the device has no memory left for a step of {num_tokens} tokens; lower --max-num-batched-tokens, "
            "--max-num-seqs or --kv-cache-memory"
        ) from error


def _accepted(step: Step, token_ids: np.ndarray) -> list[list[int]]:
    """The tokens that each request gains: its drafts for as long as they are what is sampled, and the sample after.

    A draft stands where the sample in its place, drawn by the same key as without drafts, is that very token: so the
    text is the same with and without them, greedy or not.
    """
    tokens = token_ids.tolist()
    accepted, start = [], 0
    for num_samples, drafts in zip(step.num_samples.tolist(), step.drafts, strict=True):
        samples = tokens[start : start + num_samples]
        start += num_samples
        count = 0
        while count < len(drafts) and samples[count] == drafts[count]:
            count += 1
        accepted.append(samples[: count + 1])
    return accepted


def _logprobs(step: Step, sampled: Sampled, accepted: list[list[int]]) -> list[list[TokenLogprobs]] | None:
    """The log-probabilities of each request's tokens, empty for one that asked for none; None where none did."""
    if all(width is None for width in step.num_logprobs):
        return None
    host = jax.device_get(sampled)
    starts = np.cumsum(step.num_samples) - step.num_samples
    return [
        [] if width is None else [_token_logprobs(host, start + i, width) for i in range(len(tokens))]
        for width, start, tokens in zip(step.num_logprobs, starts, accepted, strict=True)
    ]


def _prompt_logprobs(step: Step, scores: list[Sampled]) -> dict[str, list[TokenLogprobs]]:
    """The scores of each request's tokens, where it has any in this step."""
    assert step.scored is not None
    host, first, by_request = jax.device_get(scores), 0, {}
    for req_id, count, width in zip(step.req_ids, step.scored.counts.tolist(), step.scored.num_logprobs, strict=True):
        places = [divmod(place, _SCORED_AT_ONCE) for place in range(first, first + count)]
        if places:
            by_request[req_id] = [_token_logprobs(host[part], row, width) for part, row in places]
        first += count
    return by_request


def _token_logprobs(sampled: Sampled, row: int, width: int) -> TokenLogprobs:
    return TokenLogprobs(
        token_id=int(sampled.token_id[row]),
        logprob=float(sampled.logprob[row]),
        rank=int(sampled.rank[row]),
        top_token_ids=sampled.top_token_id[row, :width].tolist(),
        top_logprobs=sampled.top_logprob[row, :width].tolist(),
    )
