"""Attention in plain JAX: the readable reference, and the path that runs anywhere.

Queries are cut into tiles of one sequence each: a decoding sequence is a tile of one query, a prefill chunk is tiles
of up to _PREFILL_TILE. Groups of tiles walk over their pages a block at a time with the online softmax of
FlashAttention (arXiv:2205.14135). Loop bounds are computed on the device, so no shape depends on a context's length,
and a group walks only as far as its longest context and starts where its earliest window does.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from runner.attention.interface import KVCache, Place, RaggedBatch, TokenPlaces, token_places

_DECODE_TILES = 8
"""Decoding sequences walked together; sorted by length, so that they end at about the same page."""
_PREFILL_TILE = 64
_BLOCK_TOKENS = 64
_MASKED = -1e30


class Tiles(NamedTuple):
    """`num_tiles` tiles, each of up to a fixed number of queries of one sequence; `position` is the first query's.

    All but `num_tiles` are int32 [tiles].
    """

    num_tiles: jax.Array
    first_token: jax.Array
    length: jax.Array
    position: jax.Array
    sequence: jax.Array


class Plan(NamedTuple):
    batch: RaggedBatch[jax.Array]
    places: TokenPlaces
    decode: Tiles
    prefill: Tiles


class XlaAttention:
    """See runner.attention.interface.Attention. Keys and values are [buffers, pages, page_size, kv_heads, head_dim]."""

    def empty_cache(
        self, num_buffers: int, num_pages: int, page_size: int, num_kv_heads: int, head_dim: int, dtype: np.dtype
    ) -> KVCache:
        shape = (num_buffers, num_pages, page_size, num_kv_heads, head_dim)
        return KVCache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))

    def plan(self, batch: RaggedBatch[jax.Array], num_tokens: int, page_size: int) -> Plan:
        places = token_places(batch, num_tokens)
        return Plan(batch, places, _decode_tiles(batch), _prefill_tiles(batch, num_tokens))

    def __call__(
        self,
        queries: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        cache: KVCache,
        place: Place[jax.Array],
        plan: Plan,
        *,
        scale: float,
        soft_cap: float | None,
    ) -> tuple[jax.Array, KVCache]:
        cache = _write(cache, keys, values, place, plan)
        layer = _Layer(cache, place, plan.batch.page_tables[place.group], scale, soft_cap)
        out = jnp.zeros_like(queries)
        out = _walk(out, queries, layer, plan.decode, tile_length=1, tiles_at_once=_DECODE_TILES)
        out = _walk(out, queries, layer, plan.prefill, tile_length=_PREFILL_TILE, tiles_at_once=1)
        return out, cache


class _Layer(NamedTuple):
    cache: KVCache
    place: Place[jax.Array]
    page_table: jax.Array
    scale: float
    soft_cap: float | None


def _write(cache: KVCache, keys: jax.Array, values: jax.Array, place: Place[jax.Array], plan: Plan) -> KVCache:
    page_size = cache.keys.shape[2]
    sequence, position, is_real = plan.places
    page = plan.batch.page_tables[place.group, sequence, position // page_size]
    page = jnp.where(is_real, page, 0)
    at = (place.buffer, page, position % page_size)
    return KVCache(
        cache.keys.at[at].set(keys.astype(cache.keys.dtype)), cache.values.at[at].set(values.astype(cache.values.dtype))
    )


def _decode_tiles(batch: RaggedBatch[jax.Array]) -> Tiles:
    """The sequences with one query, longest context first."""
    length = jnp.diff(batch.query_start)
    is_decode = length == 1
    sequence = jnp.argsort(jnp.where(is_decode, -batch.context_lens, 1)).astype(jnp.int32)
    padding = -sequence.shape[0] % _DECODE_TILES
    sequence = jnp.pad(sequence, (0, padding))
    count = jnp.sum(is_decode)
    is_tile = jnp.arange(sequence.shape[0]) < count
    return Tiles(
        count,
        batch.query_start[sequence],
        jnp.where(is_tile, 1, 0),
        jnp.where(is_tile, batch.context_lens[sequence] - 1, 0),
        sequence,
    )


def _prefill_tiles(batch: RaggedBatch[jax.Array], num_tokens: int) -> Tiles:
    """The sequences with several queries, cut into tiles."""
    length = jnp.diff(batch.query_start)
    tiles = jnp.where(length > 1, -(-length // _PREFILL_TILE), 0)
    end = jnp.cumsum(tiles)
    tile = jnp.arange(length.shape[0] + num_tokens // _PREFILL_TILE)
    sequence = jnp.minimum(jnp.searchsorted(end, tile, side="right"), length.shape[0] - 1)
    offset = (tile - (end - tiles)[sequence]) * _PREFILL_TILE
    return Tiles(
        end[-1],
        batch.query_start[sequence] + offset,
        jnp.clip(length[sequence] - offset, 0, _PREFILL_TILE),
        batch.context_lens[sequence] - length[sequence] + offset,
        sequence,
    )


def _walk(
    out: jax.Array, queries: jax.Array, layer: _Layer, tiles: Tiles, *, tile_length: int, tiles_at_once: int
) -> jax.Array:
    """Attend for every tile and put the results into `out`."""
    num_tokens, num_heads, head_dim = queries.shape
    kv_heads = layer.cache.keys.shape[3]
    in_tile = jnp.arange(tile_length)

    def group_of_tiles(index: jax.Array, out: jax.Array) -> jax.Array:
        _, first_token, length, position, sequence = jax.tree.map(
            lambda x: x if x.ndim == 0 else jax.lax.dynamic_slice_in_dim(x, index * tiles_at_once, tiles_at_once), tiles
        )
        token = first_token[:, None] + in_tile
        grouped = queries[jnp.minimum(token, num_tokens - 1)]
        grouped = grouped.reshape(tiles_at_once, tile_length, kv_heads, num_heads // kv_heads, head_dim)
        attended = _attend_tiles(grouped, layer, position, length, sequence)
        token = jnp.where(in_tile < length[:, None], token, num_tokens)
        return out.at[token].set(attended.reshape(*token.shape, num_heads, head_dim), mode="drop")

    num_groups = (tiles.num_tiles + tiles_at_once - 1) // tiles_at_once
    return jax.lax.fori_loop(0, num_groups, group_of_tiles, out)


def _attend_tiles(
    queries: jax.Array, layer: _Layer, position: jax.Array, length: jax.Array, sequence: jax.Array
) -> jax.Array:
    """Online softmax of tiles [B, queries, kv_heads, heads of one kv head, head_dim] over blocks of pages."""
    page_size = layer.cache.keys.shape[2]
    pages_a_block = max(1, _BLOCK_TOKENS // page_size)
    block_tokens = pages_a_block * page_size
    table = layer.page_table[sequence]
    table = jnp.pad(table, ((0, 0), (0, -table.shape[1] % pages_a_block)))
    query_position = position[:, None] + jnp.arange(queries.shape[1])

    def block(index: jax.Array, state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, ...]:
        highest, total, out = state
        page = jax.lax.dynamic_slice_in_dim(table, index * pages_a_block, pages_a_block, axis=1)
        keys, values = (
            buffer[layer.place.buffer, page].reshape(len(page), block_tokens, *buffer.shape[3:]).astype(jnp.float32)
            for buffer in layer.cache
        )
        scores = jnp.einsum("bqhgd,bkhd->bhgqk", queries, keys) * layer.scale
        if layer.soft_cap is not None:
            scores = layer.soft_cap * jnp.tanh(scores / layer.soft_cap)
        key_position = index * block_tokens + jnp.arange(block_tokens)
        distance = query_position[:, :, None] - key_position
        seen = (distance >= 0) & (distance < layer.place.window)
        scores = jnp.where(seen[:, None, None], scores, _MASKED)
        new_highest = jnp.maximum(highest, scores.max(-1))
        weights = jnp.where(seen[:, None, None], jnp.exp(scores - new_highest[..., None]), 0)
        # others may have left anything in what is not seen, and not even NaN times zero is zero
        first, end = position - layer.place.window + 1, position + length
        is_own = (key_position >= first[:, None]) & (key_position < end[:, None])
        values = jnp.where(is_own[:, :, None, None], values, 0)
        shrink = jnp.exp(highest - new_highest)
        total = total * shrink + weights.sum(-1)
        out = out * shrink[..., None] + jnp.einsum("bhgqk,bkhd->bhgqd", weights, values)
        return new_highest, total, out

    batch, width, kv_heads, heads, head_dim = queries.shape
    start = (
        jnp.full((batch, kv_heads, heads, width), _MASKED),
        jnp.zeros((batch, kv_heads, heads, width)),
        jnp.zeros((batch, kv_heads, heads, width, head_dim)),
    )
    no_tile = jnp.iinfo(jnp.int32).max
    first_seen = jnp.min(jnp.where(length > 0, position, no_tile)) - layer.place.window + 1
    first_block = jnp.maximum(first_seen, 0) // block_tokens
    end_block = -(-jnp.max(position + length) // block_tokens)
    _, total, out = jax.lax.fori_loop(first_block, end_block, block, start)
    out = out / jnp.maximum(total, jnp.finfo(jnp.float32).tiny)[..., None]
    return jnp.moveaxis(out, 3, 1)
