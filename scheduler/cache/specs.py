"""What one group of layers keeps of a sequence, and for how long.

Layers with the same specification form groups of equal size, and every group draws pages from one pool. Page p of
a group lives in row p of the group's buffers; layer i of every group uses buffer i, so that a page holds exactly one
group's tokens and no memory is set aside for a kind of layer that does not need it (the layout of vLLM's hybrid KV
cache manager).
"""

from __future__ import annotations

from dataclasses import dataclass

_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(slots=True, frozen=True)
class FullAttentionSpec:
    """Keys and values of every token. `head_size` in elements; `dtype` is a string such as "float32"."""

    page_size: int
    num_kv_heads: int
    head_size: int
    dtype: str

    @property
    def page_bytes(self) -> int:
        """Bytes of one page of one layer: keys and values."""
        return 2 * self.page_size * self.num_kv_heads * self.head_size * _DTYPE_BYTES[self.dtype]

    def first_visible_token(self, position: int) -> int:
        """The first token that the token at `position`, or any later one, sees."""
        return 0

    def max_pages(self, num_tokens: int, max_num_batched_tokens: int) -> int:
        """The most pages that a sequence which grows to `num_tokens` holds at a time, when a step computes at most
        `max_num_batched_tokens` of them.
        """
        return -(-num_tokens // self.page_size)


@dataclass(slots=True, frozen=True)
class SlidingWindowSpec(FullAttentionSpec):
    """A token sees itself and the `sliding_window - 1` tokens before it."""

    sliding_window: int

    def first_visible_token(self, position: int) -> int:
        return max(0, position - self.sliding_window + 1)

    def max_pages(self, num_tokens: int, max_num_batched_tokens: int) -> int:
        return _pages_spanned(self.page_size, num_tokens, self.sliding_window - 1 + max_num_batched_tokens)


@dataclass(slots=True, frozen=True)
class ChunkedLocalAttentionSpec(FullAttentionSpec):
    """The sequence is cut into chunks of `attention_chunk_size` tokens; a token sees those before it in its chunk."""

    attention_chunk_size: int

    def first_visible_token(self, position: int) -> int:
        return position - position % self.attention_chunk_size

    def max_pages(self, num_tokens: int, max_num_batched_tokens: int) -> int:
        return _pages_spanned(self.page_size, num_tokens, self.attention_chunk_size - 1 + max_num_batched_tokens)


@dataclass(slots=True, frozen=True)
class RecurrentStateSpec:
    """A state of `state_bytes` a layer that every token replaces (linear attention, state space, short convolution).

    It takes no pages. A running request owns one slot of the group's state buffers, whatever its length: slots 1 to
    `max_num_seqs`, slot 0 for padding. The runner clears the slot of a request that begins at token 0.
    """

    state_bytes: int

    @property
    def page_bytes(self) -> int:
        """None of a page is a state's."""
        return 0

    def max_pages(self, num_tokens: int, max_num_batched_tokens: int) -> int:
        return 0


PagedSpec = FullAttentionSpec | SlidingWindowSpec | ChunkedLocalAttentionSpec
KVCacheSpec = PagedSpec | RecurrentStateSpec


@dataclass(slots=True, frozen=True)
class CacheGroupSpec:
    """Layers that share one page table, or the slots of a state."""

    kv_cache_spec: KVCacheSpec
    layer_names: list[str] | None = None


@dataclass(slots=True, frozen=True)
class CacheGroupsConfig:
    """The page pool (`num_pages`, the null page counted) and the groups that draw from it."""

    num_pages: int
    kv_cache_groups: list[CacheGroupSpec]


def group_layers(specs: dict[str, KVCacheSpec]) -> list[CacheGroupSpec]:
    """Divide layers (name → specification, in model order) into groups of one specification and about one size.

    The size is the smallest count of layers that share a specification, or the largest where that wastes less than a
    quarter. A group's buffer beyond its own number of layers stays unused. States share no buffers with pages: those
    of one specification are one group.
    """
    by_spec: dict[KVCacheSpec, list[str]] = {}
    for name, spec in specs.items():
        by_spec.setdefault(spec, []).append(name)
    counts = [len(names) for spec, names in by_spec.items() if not isinstance(spec, RecurrentStateSpec)]
    groups = []
    for spec, names in by_spec.items():
        size = len(names) if isinstance(spec, RecurrentStateSpec) else _group_size(counts)
        groups += [CacheGroupSpec(spec, names[start : start + size]) for start in range(0, len(names), size)]
    return groups


def _group_size(counts: list[int]) -> int:
    return max(counts) if max(counts) < 1.25 * min(counts) else min(counts)


def _pages_spanned(page_size: int, num_tokens: int, span: int) -> int:
    """The most pages that any `span` tokens in a row touch, in a sequence of `num_tokens`."""
    return min(-(-num_tokens // page_size), (span - 2) // page_size + 2 if span > 1 else 1)
