"""Every attention backend, against the plain definition in float64 NumPy."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instructions import instruction_sets

from runner.attention import cpu
from runner.attention.interface import KVCache, Place, RaggedBatch
from runner.attention.xla import XlaAttention

UNLIMITED = np.iinfo(np.int32).max
JUNK = 30.0
BACKENDS = {"xla": XlaAttention()} | (
    {f"native {name or 'best'}": cpu.CpuAttention(name) for name in instruction_sets()} if cpu.is_built() else {}
)
needs_native = pytest.mark.skipif(not cpu.is_built(), reason="built without a compiler")


@pytest.fixture(params=BACKENDS.values(), ids=BACKENDS.keys())
def attention(request):
    return request.param


@partial(jax.jit, static_argnames=("attention", "page_size", "scale", "soft_cap"))
def attend(attention, queries, keys, values, cache, place, batch, *, page_size, scale, soft_cap):
    plan = attention.plan(batch, queries.shape[0], page_size)
    return attention(queries, keys, values, cache, place, plan, scale=scale, soft_cap=soft_cap)


class Case:
    """Sequences of (computed, scheduled) tokens, their pages scattered over a pool that is full of junk.

    Everything happens in buffer 1 of group 1; the queries, keys and values of all positions are made beforehand.
    Batches are padded to a multiple of 256 tokens and 12 sequences, so that few shapes are compiled.
    """

    def __init__(self, sequences, *, heads=4, kv_heads=2, head_dim=8, page_size=4, dtype="float32", junk=JUNK):
        rng = np.random.default_rng(0)
        self.sequences, self.page_size, self.dtype, self.junk = sequences, page_size, jnp.dtype(dtype), junk
        pages = [-(-(computed + new) // page_size) for computed, new in sequences]
        page_ids = np.split(1 + rng.permutation(sum(pages)), np.cumsum(pages)[:-1])
        self.num_pages = -(-(2 + sum(pages)) // 128) * 128
        self.page_tables = np.zeros((2, 12, -(-max(pages) // 64) * 64), np.int32)
        for row, ids in zip(self.page_tables[1], page_ids, strict=False):
            row[: len(ids)] = ids

        def random(count):
            return [rng.normal(size=(sum(s), count, head_dim)).astype(np.float32) for s in sequences]

        self.queries, self.keys, self.values = random(heads), random(kv_heads), random(kv_heads)

    def run(self, attention, *, scale, window=UNLIMITED, soft_cap=None):
        """One step for the computed tokens, one for the scheduled ones: the second's output for each sequence."""
        empty = attention.empty_cache(2, self.num_pages, self.page_size, *self.keys[0].shape[1:], self.dtype)
        cache = jax.tree.map(lambda x: jnp.full_like(x, self.junk), empty)
        options = {"scale": scale, "soft_cap": soft_cap}
        place = Place(jnp.int32(1), jnp.int32(1), jnp.int32(window))
        if any(computed for computed, _ in self.sequences):
            computed = [(0, computed) for computed, _ in self.sequences]
            _, cache = self._step(attention, cache, place, self.page_tables, computed, options)
        tables = self.page_tables.copy()
        for row, (computed, _) in zip(tables[1], self.sequences, strict=False):
            row[: max(0, computed - window + 1) // self.page_size] = 0  # what no query sees any more is not kept
        return self._step(attention, cache, place, tables, self.sequences, options)

    def _step(self, attention, cache, place, page_tables, sequences, options):
        lengths = [new for _, new in sequences]
        num_seqs = page_tables.shape[1]
        query_start = np.full(num_seqs + 1, sum(lengths), np.int32)
        query_start[: len(lengths) + 1] = np.cumsum([0, *lengths])
        context = np.zeros(num_seqs, np.int32)
        context[: len(lengths)] = [sum(s) for s in sequences]

        def ragged(rows):
            cut = [row[computed : computed + new] for row, (computed, new) in zip(rows, sequences, strict=True)]
            return np.pad(np.concatenate(cut), ((0, -sum(lengths) % 256), (0, 0), (0, 0)))

        batch = RaggedBatch(query_start, context, page_tables)
        projections = (ragged(self.queries), ragged(self.keys), ragged(self.values))
        out, cache = attend(attention, *projections, cache, place, batch, page_size=self.page_size, **options)
        assert np.isfinite(out).all()
        return np.split(np.asarray(out), query_start[1 : len(lengths) + 1])[:-1], cache

    def expected(self, *, scale, window=UNLIMITED, soft_cap=None):
        """One query at a time, one head at a time."""
        for queries, keys, values, (computed, new) in zip(
            self.queries, self.keys, self.values, self.sequences, strict=True
        ):
            keys, values = (np.asarray(jnp.asarray(x, self.dtype), np.float64) for x in (keys, values))
            out = np.zeros(queries[computed:].shape)
            group = queries.shape[1] // keys.shape[1]
            for i, position in enumerate(range(computed, computed + new)):
                seen = slice(max(0, position - window + 1), position + 1)
                for head, query in enumerate(queries[position].astype(np.float64)):
                    scores = keys[seen, head // group] @ query * scale
                    if soft_cap is not None:
                        scores = soft_cap * np.tanh(scores / soft_cap)
                    weights = np.exp(scores - scores.max())
                    out[i, head] = weights / weights.sum() @ values[seen, head // group]
            yield out

    def check(self, attention, **options):
        got, _ = self.run(attention, **options)
        for out, expected in zip(got, self.expected(**options), strict=True):
            np.testing.assert_allclose(out, expected, atol=2e-5)


SEQUENCES = {
    "one decode token": [(9, 1)],
    "the first token of all": [(0, 1)],
    "a whole prompt": [(0, 13)],
    "a prompt over several tiles": [(0, 150)],
    "a later chunk of a prompt": [(37, 70)],
    "decode tokens of ragged lengths": [(n, 1) for n in (3, 200, 17, 64, 63, 1, 0, 90, 128, 5, 40)],
    "prefill and decode together": [(20, 1), (0, 66), (130, 1), (64, 2), (5, 1)],
}


@pytest.mark.parametrize("sequences", SEQUENCES.values(), ids=SEQUENCES.keys())
@pytest.mark.parametrize("window", [UNLIMITED, 1, 5, 64])
def test_every_query_sees_its_own_past(attention, sequences, window):
    Case(sequences).check(attention, scale=0.3, window=window)


def test_scores_are_capped_after_the_scale(attention):
    Case([(30, 9), (8, 1)]).check(attention, scale=2.0, soft_cap=1.5)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "page_size"),
    [(9, 3, 64, 16), (3, 3, 80, 16), (4, 1, 256, 32), (8, 2, 8, 1), (16, 1, 24, 5), (14, 2, 128, 128), (26, 2, 16, 16)],
)
def test_heads_and_pages_of_other_sizes(attention, heads, kv_heads, head_dim, page_size):
    case = Case([(70, 1), (0, 35), (18, 19)], heads=heads, kv_heads=kv_heads, head_dim=head_dim, page_size=page_size)
    case.check(attention, scale=head_dim**-0.5, window=40)


def test_a_pool_in_bfloat16(attention):
    Case([(7, 3), (40, 1), (0, 20)], dtype="bfloat16").check(attention, scale=1.0)


def test_a_large_score_does_not_overflow(attention):
    Case([(70, 5), (3, 1)]).check(attention, scale=100.0)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 90), st.integers(1, 40)), min_size=1, max_size=6),
    st.sampled_from([1, 3, 16, 17, UNLIMITED]),
    st.sampled_from([(4, 2), (3, 1), (5, 5)]),
    st.sampled_from([4, 16]),
)
def test_any_batch(sequences, window, heads, page_size):
    case = Case(sequences, heads=heads[0], kv_heads=heads[1], page_size=page_size)
    for attention in BACKENDS.values():
        case.check(attention, scale=0.5, window=window)


def test_a_step_leaves_other_pages_and_buffers_alone(attention):
    case = Case([(7, 3), (0, 6), (12, 1)])
    _, cache = case.run(attention, scale=1.0)
    for pool in cache:
        assert (pool[0] == JUNK).all(), "the other buffer"
        assert (pool[1, 1 + case.page_tables.max() :] == JUNK).all(), "pages of nobody"


@pytest.mark.parametrize("window", [UNLIMITED, 5])
@pytest.mark.parametrize("junk", [np.nan, np.inf])
def test_what_others_left_in_a_page_does_not_matter(attention, junk, window):
    case = Case([(7, 3), (0, 6), (12, 1), (64, 1), (130, 2)], page_size=16, junk=junk)
    case.check(attention, scale=1.0, window=window)


def test_the_pool_is_updated_in_place(attention):
    case = Case([(7, 3)])
    empty = attention.empty_cache(2, case.num_pages, case.page_size, 2, 8, jnp.dtype("float32"))
    batch = RaggedBatch(jnp.array([0, 3], jnp.int32), jnp.array([10], jnp.int32), jnp.asarray(case.page_tables))
    heads = jnp.ones((3, 4, 8))

    def step(cache: KVCache):
        place = Place(jnp.int32(0), jnp.int32(1), jnp.int32(UNLIMITED))
        plan = attention.plan(batch, 3, case.page_size)
        return attention(heads, heads[:, :2], heads[:, :2], cache, place, plan, scale=1.0, soft_cap=None)

    before = [pool.unsafe_buffer_pointer() for pool in empty]
    _, after = jax.jit(step, donate_argnums=0)(empty)
    assert [pool.unsafe_buffer_pointer() for pool in after] == before


@needs_native
def test_instructions_that_do_not_exist_are_refused():
    with pytest.raises(Exception, match="no such instructions"):
        Case([(0, 3)]).check(cpu.CpuAttention("abacus"), scale=1.0)
