"""Attention as one native call a layer, for CPUs: kernel.cc, through JAX's foreign function interface.

The call writes a step's keys and values into their pages in place, and reads pages where they lie, so that ragged
batches need no padding and no gather. It runs on XLA's own threads.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from runner.attention.interface import KVCache, Place, RaggedBatch
from runner.native import NativeCall

_CALL = NativeCall("esurge_attention", __file__)
_PAGES = NativeCall("esurge_pages", __file__)
is_built = _CALL.is_built
CACHE_DTYPES = ("float32", "bfloat16")
_LANE = 16

Plan = tuple[RaggedBatch[jax.Array], int]
"""The batch, and the page size."""


class CpuAttention:
    """See runner.attention.interface.Attention; kernel.h gives the layout of the pages.

    `kernels` names an instruction set (baseline, avx2, avx512) for tests; "" is the best that the machine has.
    """

    def __init__(self, kernels: str = "") -> None:
        _CALL.register()
        _PAGES.register()
        self._kernels = kernels

    def empty_cache(
        self, num_buffers: int, num_pages: int, page_size: int, num_kv_heads: int, head_dim: int, dtype: np.dtype
    ) -> KVCache:
        keys = (num_buffers, num_pages, num_kv_heads, head_dim, _round_up(page_size))
        values = (num_buffers, num_pages, num_kv_heads, page_size, _round_up(head_dim))
        shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape in (keys, values)]
        pages = jax.jit(lambda: [jax.ffi.ffi_call(_PAGES.name, shape)() for shape in shapes])
        return KVCache(*pages())

    def plan(self, batch: RaggedBatch[jax.Array], num_tokens: int, page_size: int) -> Plan:
        return batch, page_size

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
        batch, page_size = plan
        call = jax.ffi.ffi_call(
            _CALL.name,
            tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (queries, *cache)),
            input_output_aliases={3: 1, 4: 2},
        )
        out, new_keys, new_values = call(
            queries,
            keys,
            values,
            *cache,
            *batch,
            jnp.stack(place),
            kernels=self._kernels,
            page_size=page_size,
            scale=np.float32(scale),
            soft_cap=np.float32(soft_cap or 0.0),
        )
        return out, KVCache(new_keys, new_values)


def _round_up(size: int) -> int:
    return -(-size // _LANE) * _LANE
