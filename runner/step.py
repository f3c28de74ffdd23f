"""The two programs of a step: every token through the layers, then a token after each state that asks for one.

They are apart because they come in different sizes, and because what a sampler waits for (a grammar's mask, say) need
not hold the layers up.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from runner.attention.interface import Attention, KVCache
from runner.batch import Batch, StepTokens
from runner.linear.interface import Linear
from runner.models import decoder
from runner.models.config import DecoderConfig
from runner.options import EnginePlan
from runner.processors import Adjustments, adjust, remember
from runner.programs import Programs
from runner.sampler import Sampled, SamplingBatch, sample, score


def step_programs(
    config: DecoderConfig,
    plan: EnginePlan,
    attention: Attention,
    linear: Linear,
    batch: Batch,
    params_shape: decoder.Params,
    cache: KVCache,
    latest: jax.Array,
) -> Programs:
    """The programs "forward", "sample", "adjusted" (a sample of adjusted logits) and "score" (of given tokens).

    They are for arguments shaped like these, of which nothing is kept.
    """
    cache_shape, latest_shape = jax.tree.map(_shape, (cache, latest))
    forward = jax.jit(
        partial(_forward, config, attention, linear, plan.layout.places(), plan.layout.page_size), donate_argnums=1
    )
    sampling_of = jax.jit(partial(_sample, config, linear, plan.max_num_samples))
    score_of = jax.jit(partial(_score, config, linear))
    adjusted_of = jax.jit(partial(_sample_adjusted, config, linear, plan.max_num_samples), donate_argnums=4)

    def lower_forward(num_tokens: int) -> jax.stages.Lowered:
        sizes = (plan.num_sequences_of(num_tokens), plan.num_samples_of(num_tokens))
        tokens, _ = batch.empty_inputs(num_tokens, *sizes)
        with _matmul_precision(plan.dtype):
            return forward.lower(params_shape, cache_shape, latest_shape, tokens)

    def lower_sample(num_samples: int) -> jax.stages.Lowered:
        _, sampling = batch.empty_inputs(0, 0, num_samples)
        hidden = jax.ShapeDtypeStruct((num_samples, config.hidden_size), linear.dtype)
        with _matmul_precision(plan.dtype):
            return sampling_of.lower(params_shape, hidden, sampling)

    def lower_adjusted(num_samples: int) -> jax.stages.Lowered:
        _, sampling = batch.empty_inputs(0, 0, num_samples)
        hidden = jax.ShapeDtypeStruct((num_samples, config.hidden_size), linear.dtype)
        adjustments = batch.adjuster.empty(num_samples)
        with _matmul_precision(plan.dtype):
            return adjusted_of.lower(params_shape, hidden, sampling, adjustments, batch.adjuster.history.shape)

    def lower_score(num_tokens: int) -> jax.stages.Lowered:
        states = jax.ShapeDtypeStruct((num_tokens, config.hidden_size), linear.dtype)
        with _matmul_precision(plan.dtype):
            return score_of.lower(params_shape, states, jax.ShapeDtypeStruct((num_tokens,), jnp.int32))

    lower = {"forward": lower_forward, "sample": lower_sample, "adjusted": lower_adjusted, "score": lower_score}
    return Programs(lower)


def _forward(
    config: DecoderConfig,
    attention: Attention,
    linear: Linear,
    places: decoder.CachePlaces,
    page_size: int,
    params: decoder.Params,
    cache: KVCache,
    latest: jax.Array,
    tokens: StepTokens[jax.Array],
) -> tuple[jax.Array, jax.Array, KVCache]:
    """Every token through the layers.

    Returns the states of those sampled after, [R, hidden], of all, [T, hidden], and the cache.
    """
    token_ids = jnp.where(tokens.previous >= 0, latest[tokens.previous], tokens.ids)
    hidden, cache = decoder.forward(
        config, attention, linear, params, cache, places, page_size, token_ids, tokens.ragged
    )
    return hidden[tokens.sampled], hidden, cache


def _sample(
    config: DecoderConfig,
    linear: Linear,
    max_num_samples: int,
    params: decoder.Params,
    hidden: jax.Array,
    sampling: SamplingBatch[jax.Array],
) -> tuple[Sampled, jax.Array]:
    """A token after each state; also as int32 [max_num_samples], for the next step to read on the device."""
    logits = decoder.logits(config, linear, params, hidden)
    sampled = sample(logits, sampling)
    return sampled, _as_latest(sampled, max_num_samples)


def _sample_adjusted(
    config: DecoderConfig,
    linear: Linear,
    max_num_samples: int,
    params: decoder.Params,
    hidden: jax.Array,
    sampling: SamplingBatch[jax.Array],
    adjustments: Adjustments[jax.Array],
    history: jax.Array,
) -> tuple[Sampled, jax.Array, jax.Array]:
    """As `_sample`, of adjusted logits; returns the history with the tokens drawn as well."""
    logits = decoder.logits(config, linear, params, hidden)
    sampled = sample(adjust(logits, adjustments, history), sampling, raw=logits)
    return sampled, _as_latest(sampled, max_num_samples), remember(history, adjustments, sampled.token_id)


def _score(
    config: DecoderConfig, linear: Linear, params: decoder.Params, states: jax.Array, token_id: jax.Array
) -> Sampled:
    """What the model says of the token, int32 [N], after each state, [N, hidden]."""
    return score(decoder.logits(config, linear, params, states), token_id)


def _as_latest(sampled: Sampled, max_num_samples: int) -> jax.Array:
    return jnp.pad(sampled.token_id, (0, max_num_samples - len(sampled.token_id)))


def _matmul_precision(dtype: str) -> AbstractContextManager[Any]:
    """Float32 means float32, also on accelerators whose default is to round a matrix product's inputs."""
    return jax.default_matmul_precision("highest" if dtype == "float32" else "default")


def _shape(array: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)
