"""One decoder-only transformer, driven by a DecoderConfig.

The layers are alike in structure; what differs (window, rope, place in the cache) is given to each beside its weights.
They are one `lax.scan`, which compiles in the time of one layer. The matrices stay where they are, and a layer is told
its number in them: the scan would copy them, once a step.
"""

from __future__ import annotations

from typing import Any, Generic, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from runner.attention.interface import Array, Attention, KVCache, Place, RaggedBatch, token_places
from runner.linear.gate import gate
from runner.linear.interface import Linear
from runner.models.config import Activation, DecoderConfig
from runner.models.rope import rotate, rotation

Params = dict[str, Any]
"""embedding [1, vocab, hidden], layers, final_norm [1, hidden], and head [1, vocab, hidden] unless tied.

`layers` is {name: array [layers, …]}. Their matrices are [outputs, inputs]; queries, keys and values are one matrix,
gate and up another. Each matrix that a product is taken with (a tied embedding too) is as the Linear stores it."""

_MATRICES = ("qkv", "out", "gate_up", "down")

UNLIMITED_WINDOW = np.iinfo(np.int32).max


class CachePlaces(NamedTuple):
    """For each layer, the cache group whose page table it reads and its buffer of the pool; int32 [layers] each."""

    group: np.ndarray
    buffer: np.ndarray


class _Differences(NamedTuple, Generic[Array]):
    """What a layer is given besides its weights: its number, its place in the cache, and which of the model's ropes."""

    number: Array
    place: Place[Array]
    rope: Array


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
    differences: _Differences[jax.Array] = jax.tree.map(
        jnp.asarray,
        _Differences(
            np.arange(config.num_layers, dtype=np.int32),
            Place(places.buffer, places.group, windows),
            np.array([ropes.index(layer.rope) for layer in config.layers], np.int32),
        ),
    )

    matrices = {name: params["layers"][name] for name in _MATRICES}
    vectors = {name: array for name, array in params["layers"].items() if name not in _MATRICES}

    def layer(
        carry: tuple[jax.Array, KVCache], given: tuple[Params, _Differences[jax.Array]]
    ) -> tuple[tuple[jax.Array, KVCache], None]:
        (x, cache), (own_vectors, own) = carry, given
        weights = _Layer(linear, matrices, own_vectors, own.number)
        normed = weights.norm("attention_norm", x, config.norm_eps)
        queries, keys, values = _project(config, weights, normed, cos[own.rope], sin[own.rope])
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
        x = x + _after(config, weights, "attention", weights.linear("out", attended, config.hidden_size))
        normed = weights.norm("mlp_norm", x, config.norm_eps)
        x = x + _after(config, weights, "mlp", _mlp(config, weights, normed))
        return (x, cache), None

    embedding = params["embedding"]
    x = linear.rows_of(embedding, token_ids) if config.tie_word_embeddings else embedding[0, token_ids]
    x = x * jnp.asarray(config.embedding_scale, x.dtype)
    (x, cache), _ = jax.lax.scan(layer, (x, cache), (vectors, differences))
    return _rms_norm(x, params["final_norm"][0], config.norm_eps), cache


def logits(config: DecoderConfig, linear: Linear, params: Params, hidden: jax.Array) -> jax.Array:
    """Float32 [rows, vocab] of states [rows, hidden]."""
    head = params["embedding"] if config.tie_word_embeddings else params["head"]
    scores = linear(hidden, head, jnp.int32(0), config.vocab_size, jnp.float32)
    if config.logit_soft_cap is not None:
        scores = config.logit_soft_cap * jnp.tanh(scores / config.logit_soft_cap)
    return scores


class _Layer(NamedTuple):
    """One layer's weights: its own vectors, and its number in the matrices of all."""

    backend: Linear
    matrices: Params
    vectors: Params
    number: jax.Array

    def linear(self, name: str, x: jax.Array, outputs: int) -> jax.Array:
        y = self.backend(x, self.matrices[name], self.number, outputs, x.dtype)
        bias = self.vectors.get(f"{name}_bias")
        return y if bias is None else y + bias

    def gated(self, name: str, x: jax.Array, outputs: int, activation: Activation) -> jax.Array:
        if f"{name}_bias" in self.vectors:
            return gate(activation, self.linear(name, x, 2 * outputs))
        return self.backend.gated(x, self.matrices[name], self.number, outputs, activation)

    def norm(self, name: str, x: jax.Array, eps: float) -> jax.Array:
        return _rms_norm(x, self.vectors[name], eps)


def _project(
    config: DecoderConfig, weights: _Layer, x: jax.Array, cos: jax.Array, sin: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Queries, keys and values, float32 [T, heads, head_dim], normed and rotated."""
    num_tokens = x.shape[0]
    num_outputs = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    heads = weights.linear("qkv", x, num_outputs).astype(jnp.float32)
    heads = heads.reshape(num_tokens, -1, config.head_dim)
    queries, keys, values = jnp.split(heads, [config.num_heads, config.num_heads + config.num_kv_heads], axis=1)
    if config.qk_norm:
        queries = weights.norm("query_norm", queries, config.norm_eps)
        keys = weights.norm("key_norm", keys, config.norm_eps)
    return rotate(queries, cos, sin), rotate(keys, cos, sin), values


def _mlp(config: DecoderConfig, weights: _Layer, x: jax.Array) -> jax.Array:
    inner = weights.gated("gate_up", x, config.intermediate_size, config.activation)
    return weights.linear("down", inner, config.hidden_size)


def _after(config: DecoderConfig, weights: _Layer, block: str, x: jax.Array) -> jax.Array:
    """The second norm of a sandwich."""
    return weights.norm(f"post_{block}_norm", x, config.norm_eps) if config.sandwich_norms else x


def _rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """Root-mean-square norm (arXiv:1910.07467) in float32, cast back to the input's dtype."""
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return (wide * weight).astype(x.dtype)
