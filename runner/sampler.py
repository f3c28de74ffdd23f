"""From logits to tokens, for a whole batch at once and each row by its own parameters.

The order is vLLM's: what processors.py does, temperature, min-p, top-k, top-p, then one draw. The kept set is found
without sorting: a threshold on the logit is bisected over the ordered bit patterns of float32 until it is exact. A
batch whose rows are all greedy takes an argmax and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple

import jax
import jax.numpy as jnp

from runner.attention.interface import Array
from scheduler import SamplingParams

MAX_LOGPROBS = 20
"""The most alternatives that a row may ask for (OpenAI's and vLLM's limit)."""

_BLOCK = 256
_GREEDY_TEMPERATURE = 1e-5
"""Below it a row is greedy (vLLM's limit)."""


_NEUTRAL: dict[str, Any] = {
    "guided_decoding": None,
}
"""Parameters that this sampler does not have yet, and the values that ask for nothing."""


def refuse_unsupported(params: SamplingParams) -> None:
    """Raises ValueError for a parameter that would otherwise be ignored."""
    asked = [name for name, neutral in _NEUTRAL.items() if getattr(params, name) != neutral]
    if asked:
        raise ValueError(f"not supported yet: {', '.join(asked)}")
    if params.bad_words and not params.bad_words_token_ids:
        raise ValueError("bad_words need bad_words_token_ids, which is they as tokens")


class SamplingBatch(NamedTuple, Generic[Array]):
    """One entry a row, [S] each. `temperature` 0 is greedy, `top_k` 0 is no limit.

    A draw's randomness is `seed` (uint32 [S, 2]: low and high word), `sample_index` and `position`, the index in the
    sequence of the token to be drawn: nothing else of the batch reaches it.
    """

    temperature: Array
    top_p: Array
    top_k: Array
    min_p: Array
    seed: Array
    sample_index: Array
    position: Array
    wants_logprobs: Array


NO_TOKEN = -1


class Sampled(NamedTuple):
    """token_id int32 [S], NO_TOKEN where the model's output is no number.

    The rest is of the raw distribution, zeros where no row asked: logprob float32 [S], rank int32 [S] (1 is the
    likeliest), top_token_id and top_logprob [S, MAX_LOGPROBS].
    """

    token_id: jax.Array
    logprob: jax.Array
    rank: jax.Array
    top_token_id: jax.Array
    top_logprob: jax.Array


def sample(logits: jax.Array, batch: SamplingBatch[jax.Array], raw: jax.Array | None = None) -> Sampled:
    """Choose a token for every row of float32 logits [S, vocab]; log-probabilities are of the `raw` ones, if given."""
    raw = logits if raw is None else raw
    greedy = _argmax(logits)  # of a row with a NaN it is that one
    is_sound = jnp.isfinite(jnp.take_along_axis(logits, greedy[:, None], axis=-1)[:, 0])
    is_random = batch.temperature >= _GREEDY_TEMPERATURE
    drawn = jax.lax.cond(jnp.any(is_random), _draw, lambda *_: greedy, logits, batch)
    token_id = jnp.where(is_random, drawn, greedy)
    sampled = jax.lax.cond(jnp.any(batch.wants_logprobs), _with_logprobs, _without_logprobs, raw, token_id)
    return sampled._replace(token_id=jnp.where(is_sound, sampled.token_id, NO_TOKEN))


def keep_mask(logits: jax.Array, batch: SamplingBatch[jax.Array]) -> jax.Array:
    """The tokens that min-p, top-k and top-p leave of logits [S, vocab] (after temperature); ties are all kept.

    min-p keeps what is at least min_p times as likely as the likeliest (arXiv:2407.01082); top-k the k likeliest;
    top-p the smallest set of likeliest tokens whose share of what top-k left reaches top_p (arXiv:1904.09751).
    """
    highest = logits.max(axis=-1, keepdims=True)
    keep = logits >= highest + jnp.log(batch.min_p)[:, None]
    keys = _ordered_bits(jnp.where(keep, logits, -jnp.inf))
    vocab = logits.shape[-1]
    top_k = jnp.where(batch.top_k > 0, jnp.minimum(batch.top_k, vocab), vocab)
    keys = jax.lax.cond(
        jnp.any(top_k < vocab),
        lambda: _raise_floor(keys, lambda above: jnp.sum(above, axis=-1) >= top_k),
        lambda: keys,
    )
    weights = jnp.where(keys > _LOWEST, jnp.exp(logits - highest), 0)
    wanted = batch.top_p * weights.sum(axis=-1)
    keys = jax.lax.cond(
        jnp.any(batch.top_p < 1),
        lambda: jnp.where(
            (batch.top_p < 1)[:, None],
            _raise_floor(keys, lambda above: jnp.sum(jnp.where(above, weights, 0), axis=-1) >= wanted),
            keys,
        ),
        lambda: keys,
    )
    return keys > _LOWEST


_LOWEST = jnp.iinfo(jnp.int32).min


def _ordered_bits(x: jax.Array) -> jax.Array:
    """Int32 that order as the floats do; both zeros are one, and -inf becomes the lowest of all."""
    bits = jax.lax.bitcast_convert_type(jnp.where(x == 0, 0.0, x), jnp.int32)
    ordered = jnp.where(bits < 0, jnp.int32(0x7FFFFFFF) ^ bits, bits)
    return jnp.where(x == -jnp.inf, _LOWEST, ordered)


def _raise_floor(keys: jax.Array, is_enough: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """Drop (to the lowest key) all keys below the highest floor that still leaves enough; keys int32 [S, vocab].

    `is_enough` tells of each row, from the mask of keys that reach a floor, whether they suffice; it must hold for
    the lowest floor, and only get false as the floor rises. 32 halvings find the floor exactly.
    """

    def halve(_: int, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        middle = (low & high) + ((low ^ high) >> 1)
        middle = middle + (middle == low)
        enough = is_enough(keys >= middle[:, None])
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle - 1)

    low = jnp.full(keys.shape[0], _LOWEST + 1, jnp.int32)
    floor, _ = jax.lax.fori_loop(0, 32, halve, (low, keys.max(axis=-1)))
    return jnp.where(keys >= floor[:, None], keys, _LOWEST)


def _draw(logits: jax.Array, batch: SamplingBatch[jax.Array]) -> jax.Array:
    logits = logits / jnp.maximum(batch.temperature, _GREEDY_TEMPERATURE)[:, None]
    weights = jnp.exp(logits - logits.max(axis=-1, keepdims=True))
    weights = jnp.where(keep_mask(logits, batch), weights, 0)
    return _draw_from(weights, _uniforms(batch))


def _draw_from(weights: jax.Array, uniform: jax.Array) -> jax.Array:
    """Token ids drawn in proportion to weights [S, vocab]: first a block of the vocabulary, then a token in it.

    Two draws (uniform is [S, 2]) keep the resolution of float32 within the block, and no long sum is ever taken.
    """
    blocks = _blocks(weights, 0)
    block = _pick(blocks.sum(axis=-1), uniform[:, 0])
    inside = _block_of(blocks, block)
    return (block * _BLOCK + _pick(inside, uniform[:, 1])).astype(jnp.int32)


def _argmax(logits: jax.Array) -> jax.Array:
    """The first of each row's highest, int32 [S]: XLA's own argmax of 128 rows of 49,152 took ten times as long."""
    blocks = _blocks(logits, -jnp.inf)
    block = jnp.argmax(blocks.max(axis=-1), axis=-1)
    inside = jnp.argmax(_block_of(blocks, block), axis=-1)
    return (block * _BLOCK + inside).astype(jnp.int32)


def _blocks(rows: jax.Array, filler: float) -> jax.Array:
    """[S, vocab] → [S, blocks, _BLOCK], the end filled up."""
    count, vocab = rows.shape
    padded = jnp.pad(rows, ((0, 0), (0, -vocab % _BLOCK)), constant_values=filler)
    return padded.reshape(count, -1, _BLOCK)


def _block_of(blocks: jax.Array, block: jax.Array) -> jax.Array:
    return jnp.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0]


def _pick(weights: jax.Array, uniform: jax.Array) -> jax.Array:
    """Index drawn in proportion to weights [S, n], never one of weight 0."""
    reached = jnp.cumsum(weights, axis=-1)
    passed = reached <= (uniform * reached[:, -1])[:, None]
    last = weights.shape[-1] - 1 - jnp.argmax((weights > 0)[:, ::-1], axis=-1)
    return jnp.minimum(passed.sum(axis=-1), last)


def _uniforms(batch: SamplingBatch[jax.Array]) -> jax.Array:
    """Two numbers in [0, 1) a row, float32 [S, 2], of (seed, sample index, position) by Threefry (Salmon, SC'11)."""

    def of_row(seed: jax.Array, sample_index: jax.Array, position: jax.Array) -> jax.Array:
        key = jax.random.wrap_key_data(seed, impl="threefry2x32")
        key = jax.random.fold_in(jax.random.fold_in(key, sample_index), position)
        return jax.random.uniform(key, (2,))

    return jax.vmap(of_row)(batch.seed, batch.sample_index, batch.position)


def score(logits: jax.Array, token_id: jax.Array) -> Sampled:
    """What a distribution, float32 logits [S, vocab], says of tokens that are given, int32 [S]."""
    return _with_logprobs(logits, token_id)


def _with_logprobs(logits: jax.Array, token_id: jax.Array) -> Sampled:
    logprobs = jax.nn.log_softmax(logits, axis=-1)
    chosen = jnp.take_along_axis(logprobs, token_id[:, None], axis=-1)
    rank = 1 + jnp.sum(logprobs > chosen, axis=-1, dtype=jnp.int32)
    width = min(MAX_LOGPROBS, logits.shape[-1])
    top_logprob, top_token_id = jax.lax.top_k(logprobs, width)
    padding = ((0, 0), (0, MAX_LOGPROBS - width))
    return Sampled(
        token_id,
        chosen[:, 0],
        rank,
        jnp.pad(top_token_id.astype(jnp.int32), padding),
        jnp.pad(top_logprob, padding, constant_values=-jnp.inf),
    )


def _without_logprobs(logits: jax.Array, token_id: jax.Array) -> Sampled:
    rows = logits.shape[0]
    return Sampled(
        token_id,
        jnp.zeros(rows),
        jnp.zeros(rows, jnp.int32),
        jnp.zeros((rows, MAX_LOGPROBS), jnp.int32),
        jnp.zeros((rows, MAX_LOGPROBS)),
    )
