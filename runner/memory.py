"""How the KV cache is laid out and how many pages it gets: arithmetic only, nothing is allocated here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import psutil

from runner.errors import UserError
from runner.models.config import DecoderConfig
from runner.models.decoder import CachePlaces
from scheduler import CacheGroupsConfig
from scheduler.cache.specs import CacheGroupSpec, group_layers

DEFAULT_CACHE_BYTES = 1 << 30
"""Enough for 128 short sequences of a small model; grown to one sequence of the full length where that needs more."""

_GROWTH_SHARE = 0.5
"""The most of the free memory that the default pool grows to."""


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """The page pool: groups of layers, buffers that a page spans, and its size.

    `page_bytes` are a page's bytes in all buffers together; `max_pages_per_sequence` is what one sequence of
    `max_model_len` tokens holds at most at a time.
    """

    groups: CacheGroupsConfig
    page_size: int
    num_buffers: int
    page_bytes: int
    max_pages_per_sequence: int

    @property
    def num_pages(self) -> int:
        return self.groups.num_pages

    @property
    def num_bytes(self) -> int:
        return self.num_pages * self.page_bytes

    @property
    def bytes_per_token(self) -> float:
        """Bytes of one token in every group, windows not counted."""
        return self.page_bytes * len(self.groups.kv_cache_groups) / self.page_size

    def places(self) -> CachePlaces:
        """Where each layer, in model order, finds its keys and values."""
        place = {
            name: (group, buffer)
            for group, spec in enumerate(self.groups.kv_cache_groups)
            for buffer, name in enumerate(spec.layer_names or [])
        }
        table = np.array([place[f"layers.{i}"] for i in range(len(place))], np.int32)
        return CachePlaces(group=table[:, 0].copy(), buffer=table[:, 1].copy())


def plan_cache(
    config: DecoderConfig,
    *,
    page_size: int,
    dtype: str,
    max_model_len: int,
    max_num_batched_tokens: int,
    num_pages: int | None = None,
    cache_bytes: int | float | None = None,
    free_bytes: int | None = None,
) -> CacheLayout:
    """Lay the cache out and size it: `num_pages` if given, else `cache_bytes` (a float up to 1 is a share of the free
    memory), else the default.

    `free_bytes` is the device's free memory (None: the host's). Raises UserError where not even one sequence of
    `max_model_len` tokens fits, and says how long a one would.
    """
    groups = group_layers(config.layer_cache_specs(page_size, dtype))
    num_buffers = max(len(group.layer_names or []) for group in groups)
    page_bytes = num_buffers * max(group.kv_cache_spec.page_bytes for group in groups)
    needed = 1 + _pages_of(groups, max_model_len, max_num_batched_tokens)
    if num_pages is None:
        free = psutil.virtual_memory().available if free_bytes is None else free_bytes
        num_pages = _cache_bytes(cache_bytes, needed * page_bytes, free) // page_bytes
    if num_pages < needed:
        longest = _longest_that_fits(groups, num_pages, max_num_batched_tokens, max_model_len)
        raise UserError(
            f"the KV cache of {num_pages} pages ({num_pages * page_bytes / 2**20:,.0f} MiB) cannot hold one sequence "
            f"of {max_model_len} tokens ({needed} pages); the longest that fits is {longest} tokens: "
            f"lower --max-model-len, or raise --kv-cache-memory or --num-pages"
        )
    return CacheLayout(CacheGroupsConfig(num_pages, groups), page_size, num_buffers, page_bytes, needed - 1)


def _cache_bytes(asked: int | float | None, needed: int, free: int) -> int:
    if asked is None:
        return min(max(DEFAULT_CACHE_BYTES, needed), int(_GROWTH_SHARE * free))
    return int(asked * free) if isinstance(asked, float) and asked <= 1 else int(asked)


def _pages_of(groups: list[CacheGroupSpec], num_tokens: int, max_num_batched_tokens: int) -> int:
    """The most pages that a sequence which grows to `num_tokens` holds at a time."""
    return sum(group.kv_cache_spec.max_pages(num_tokens, max_num_batched_tokens) for group in groups)


def _longest_that_fits(groups: list[CacheGroupSpec], num_pages: int, max_num_batched_tokens: int, limit: int) -> int:
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        fits = 1 + _pages_of(groups, middle, max_num_batched_tokens) <= num_pages
        low, high = (middle, high) if fits else (low, middle - 1)
    return low
