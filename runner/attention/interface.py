"""What every attention backend is given and what it must do.

A step is one ragged batch: the scheduled tokens of all sequences back to back, prefill chunks and single decode
tokens alike. The symbols in the shapes: T tokens (padded), S sequences (padded), G cache groups, P pages a sequence.
"""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

Array = TypeVar("Array", jax.Array, np.ndarray)
"""On the device, or on the host on its way there."""


class KVCache(NamedTuple):
    """The page pool: keys and values, [buffers, pages, …] each; what a page looks like is the backend's own.

    Layer i of every cache group uses buffer i (see scheduler.cache.specs). No sequence owns page 0: a backend may put
    there what padding tokens write.
    """

    keys: jax.Array
    values: jax.Array


class Place(NamedTuple, Generic[Array]):
    """Where a layer finds its keys and values, and how far its queries see; int32 scalars.

    `group` selects the page table and `buffer` the part of the pool. A query sees itself and the `window - 1` tokens
    before it.
    """

    buffer: Array
    group: Array
    window: Array


class RaggedBatch(NamedTuple, Generic[Array]):
    """Where a step's tokens lie; int32 arrays.

    query_start [S + 1]: sequence s owns tokens query_start[s] up to query_start[s + 1]; padding sequences own none.
    context_lens [S]: tokens of each sequence in the cache once this step's are written, so the last query of
    sequence s is at position context_lens[s] - 1.
    page_tables [G, S, P]: the page of each page_size tokens of each sequence, for each cache group.
    """

    query_start: Array
    context_lens: Array
    page_tables: Array


class TokenPlaces(NamedTuple):
    """Each token's sequence, position in it, and whether it is one at all; [T] each. Padding has position 0."""

    sequence: jax.Array
    position: jax.Array
    is_real: jax.Array


def token_places(batch: RaggedBatch[jax.Array], num_tokens: int) -> TokenPlaces:
    """Unroll a batch into one entry a token, `num_tokens` of them."""
    token = jnp.arange(num_tokens, dtype=jnp.int32)
    num_sequences = batch.context_lens.shape[0]
    sequence = jnp.searchsorted(batch.query_start, token, side="right").astype(jnp.int32) - 1
    sequence = jnp.minimum(sequence, num_sequences - 1)
    is_real = token < batch.query_start[-1]
    position = batch.context_lens[sequence] - batch.query_start[sequence + 1] + token
    return TokenPlaces(sequence, jnp.where(is_real, position, 0), is_real)


class Attention(Protocol):
    """A backend."""

    def empty_cache(
        self, num_buffers: int, num_pages: int, page_size: int, num_kv_heads: int, head_dim: int, dtype: np.dtype
    ) -> KVCache:
        """A page pool of zeros in this backend's layout."""
        ...

    def plan(self, batch: RaggedBatch[jax.Array], num_tokens: int, page_size: int) -> Any:
        """What does not depend on the layer, worked out once a step; the result is the backend's own."""
        ...

    def __call__(
        self,
        queries: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        cache: KVCache,
        place: Place[jax.Array],
        plan: Any,
        *,
        scale: float,
        soft_cap: float | None,
    ) -> tuple[jax.Array, KVCache]:
        """Write the step's keys and values into their pages, then attend causally over each sequence's pages.

        Queries are float32 [T, heads, head_dim], keys and values float32 [T, kv_heads, head_dim]. Scores are
        multiplied by `scale`, then capped to soft_cap * tanh(scores / soft_cap). Returns float32
        [T, heads, head_dim], whose rows of padding are arbitrary but finite, and the pool.
        """
        ...
