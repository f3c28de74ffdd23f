"""One decoder-only transformer, driven by a DecoderConfig.

The layers are alike in structure; what differs (window, rope, place in the cache) is given to each beside its weights.
With weights layer by layer they are compiled one after another, which runs fastest (on a CPU a scan copies every
weight once a step: 13 % of a step of 128 tokens, SmolLM2-135M). With stacked weights they are one `lax.scan`, which
compiles in the time of one layer, and is what an attention that is slow to compile needs.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from runner.attention.interface import Attention, KVCache, Place, RaggedBatch, token_places
from runner.linear.interface import Linear
from runner.models.config import Activation, DecoderConfig
from runner.models.rope import rotate, rotation

Params = dict[str, Any]
"""embedding [vocab, hidden], layers, final_norm [hidden], and head [vocab, hidden] unless tied.

`layers` is a list of {name: array}, or {name: array [layers, …]}. A layer's matrices are [outputs, inputs]; queries,
keys and values are one matrix, gate and up another. Each matrix that a product is taken with (a tied embedding too) is
as the Linear stores it."""

UNLIMITED_WINDOW = np.iinfo(np.int32).max


class CachePlaces(NamedTuple):
    """For each layer, the cache group whose page table it reads and its buffer of the pool; int32 [layers] each."""

    group: np.ndarray
    buffer: np.ndarray


class _Differences(NamedTuple):
    """What a layer is given besides its weights: its place in the cache, and which of the model's ropes it has."""

    place: Place
    rope: np.ndarray


def forward(
    config: DecoderConfig,
    attention: Attention,
    linear: Linear,
    params: Params,
    cache: KVCache,
    places: CachePlaces,
    page_size: int,
    token_ids: jax.Array,
    batch: RaggedBatch[jax.Array],
) -> tuple[jax.Array, KVCache]:
    """Run a step's tokens (int32 [T]) through every layer.

    Returns the last layer's normed states, [T, hidden] in the params' dtype, and the cache with the tokens' keys and
    values written.
    """
    num_tokens = token_ids.shape[0]
    plan = attention.plan(batch, num_tokens, page_size)
    position = token_places(batch, num_tokens).position
    ropes = list(dict.fromkeys(layer.rope for layer in config.layers))
    rotations = [rotation(rope, config.head_dim, position) for rope in ropes]
    cos, sin = (jnp.stack(table) for table in zip(*rotations, strict=True))
    windows = np.array([layer.window or UNLIMITED_WINDOW for layer in config.layers], np.int32)
    differences = _Differences(
        Place(places.buffer, places.group, windows),
        np.array([ropes.index(layer.rope) for layer in config.layers], np.int32),
    )

    def layer(
        carry: tuple[jax.Array, KVCache], given: tuple[Params, _Differences]
    ) -> tuple[tuple[jax.Array, KVCache], None]:
        (x, cache), (weights, own) = carry, given
        normed = _rms_norm(x, weights["attention_norm"], config.norm_eps)
        queries, keys, values = _project(config, linear, weights, normed, cos[own.rope], sin[own.rope])
        attended, cache = attention(
            queries,
            keys,
            values,
            cache,
            own.place,
            plan,
            scale=config.attention_scale,
            soft_cap=config.attention_soft_cap,
        )
        attended = attended.reshape(num_tokens, -1).astype(x.dtype)
        x = x + _after(config, weights, "attention", _linear(linear, weights, "out", attended, config.hidden_size))
        normed = _rms_norm(x, weights["mlp_norm"], config.norm_eps)
        x = x + _after(config, weights, "mlp", _mlp(config, linear, weights, normed))
        return (x, cache), None

    x = linear.rows_of(params["embedding"], token_ids) if config.tie_word_embeddings else params["embedding"][token_ids]
    x = x * jnp.asarray(config.embedding_scale, x.dtype)
    if isinstance(params["layers"], list):
        layer = jax.jit(layer)  # traced once, inlined by XLA
        for i, weights in enumerate(params["layers"]):
            (x, cache), _ = layer((x, cache), (weights, jax.tree.map(itemgetter(i), differences)))
    else:
        (x, cache), _ = jax.lax.scan(layer, (x, cache), (params["layers"], differences))
    return _rms_norm(x, params["final_norm"], config.norm_eps), cache


def logits(config: DecoderConfig, linear: Linear, params: Params, hidden: jax.Array) -> jax.Array:
    """Float32 [rows, vocab] of states [rows, hidden]."""
    head = params["embedding"] if config.tie_word_embeddings else params["head"]
    scores = linear(hidden, head, config.vocab_size, jnp.float32)
    if config.logit_soft_cap is not None:
        scores = config.logit_soft_cap * jnp.tanh(scores / config.logit_soft_cap)
    return scores


def _project(
    config: DecoderConfig, linear: Linear, weights: Params, x: jax.Array, cos: jax.Array, sin: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Queries, keys and values, float32 [T, heads, head_dim], normed and rotated."""
    num_tokens = x.shape[0]
    num_outputs = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    heads = _linear(linear, weights, "qkv", x, num_outputs).astype(jnp.float32)
    heads = heads.reshape(num_tokens, -1, config.head_dim)
    queries, keys, values = jnp.split(heads, [config.num_heads, config.num_heads + config.num_kv_heads], axis=1)
    if config.qk_norm:
        queries = _rms_norm(queries, weights["query_norm"], config.norm_eps)
        keys = _rms_norm(keys, weights["key_norm"], config.norm_eps)
    return rotate(queries, cos, sin), rotate(keys, cos, sin), values


def _mlp(config: DecoderConfig, linear: Linear, weights: Params, x: jax.Array) -> jax.Array:
    gate, up = jnp.split(_linear(linear, weights, "gate_up", x, 2 * config.intermediate_size), 2, axis=-1)
    return _linear(linear, weights, "down", _ACTIVATIONS[config.activation](gate) * up, config.hidden_size)


def _after(config: DecoderConfig, weights: Params, block: str, x: jax.Array) -> jax.Array:
    """The second norm of a sandwich."""
    return _rms_norm(x, weights[f"post_{block}_norm"], config.norm_eps) if config.sandwich_norms else x


def _linear(linear: Linear, weights: Params, name: str, x: jax.Array, outputs: int) -> jax.Array:
    y = linear(x, weights[name], outputs, x.dtype)
    bias = weights.get(f"{name}_bias")
    return y if bias is None else y + bias


def _rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """Root-mean-square norm (arXiv:1910.07467) in float32, cast back to the input's dtype."""
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return (wide * weight).astype(x.dtype)


_ACTIVATIONS = {
    Activation.SILU: jax.nn.silu,
    Activation.GELU: lambda x: jax.nn.gelu(x, approximate=False),
    Activation.GELU_TANH: lambda x: jax.nn.gelu(x, approximate=True),
    Activation.RELU: jax.nn.relu,
}
