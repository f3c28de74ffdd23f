"""The layout and size of the page pool, by hand-worked numbers."""

from __future__ import annotations

import pytest

from runner.errors import UserError
from runner.memory import DEFAULT_CACHE_BYTES, plan_cache
from runner.models.config import Activation, DecoderConfig, LayerConfig, RopeConfig
from scheduler import FullAttentionSpec, SlidingWindowSpec

GIB = 1 << 30


def config(windows: list[int | None]) -> DecoderConfig:
    """2 kv heads of 8 elements: 2 (K and V) * 16 tokens * 2 * 8 * 4 bytes = 2,048 bytes a page and layer."""
    return DecoderConfig(
        model_type="llama",
        vocab_size=100,
        hidden_size=32,
        intermediate_size=64,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        max_position_embeddings=4096,
        layers=tuple(LayerConfig(RopeConfig(10000.0), window) for window in windows),
        norm_eps=1e-5,
        activation=Activation.SILU,
        attention_scale=1.0,
        tie_word_embeddings=True,
    )


def plan(windows, *, max_model_len=256, max_num_batched_tokens=64, **options):
    return plan_cache(
        config(windows),
        page_size=16,
        dtype="float32",
        max_model_len=max_model_len,
        max_num_batched_tokens=max_num_batched_tokens,
        **options,
    )


def test_full_attention_is_one_group_and_a_page_spans_all_layers():
    layout = plan([None] * 3, num_pages=20)
    assert len(layout.groups.kv_cache_groups) == 1
    assert isinstance(layout.groups.kv_cache_groups[0].kv_cache_spec, FullAttentionSpec)
    assert (layout.num_buffers, layout.page_bytes, layout.num_bytes) == (3, 3 * 2048, 20 * 3 * 2048)
    assert layout.bytes_per_token == 3 * 128


def test_five_sliding_layers_to_one_full_are_six_groups_of_one_buffer_each():
    layout = plan([32, 32, 32, 32, 32, None], num_pages=200)
    specs = [group.kv_cache_spec for group in layout.groups.kv_cache_groups]
    assert [isinstance(spec, SlidingWindowSpec) for spec in specs] == [True] * 5 + [False]
    assert (layout.num_buffers, layout.page_bytes) == (1, 2048)
    places = layout.places()
    assert places.group.tolist() == [0, 1, 2, 3, 4, 5]
    assert places.buffer.tolist() == [0] * 6


def test_layers_of_one_kind_share_groups_of_equal_size():
    places = plan([32, 32, None, 32, 32, None], num_pages=200).places()
    assert places.group.tolist() == [0, 0, 2, 1, 1, 2]
    assert places.buffer.tolist() == [0, 1, 0, 0, 1, 1]


def test_a_sequence_of_256_tokens_needs_16_pages_and_the_null_page():
    assert plan([None], num_pages=17).max_pages_per_sequence == 16
    with pytest.raises(UserError, match="the longest that fits is 240 tokens"):
        plan([None], num_pages=16)


def test_a_window_needs_the_pages_of_window_and_budget_only():
    # 32 - 1 + 64 tokens in a row touch at most 7 pages of 16
    assert plan([32], num_pages=8).max_pages_per_sequence == 7
    with pytest.raises(UserError, match="cannot hold one sequence of 256 tokens"):
        plan([32], num_pages=7)


def test_memory_in_bytes_and_as_a_share():
    assert plan([None], cache_bytes=100 * 2048 + 5).num_pages == 100
    assert plan([None], cache_bytes=0.5, free_bytes=400 * 2048).num_pages == 200


def test_the_default_grows_to_one_sequence_but_takes_no_more_than_half_of_the_free_memory():
    assert plan([None], free_bytes=64 * GIB).num_bytes == DEFAULT_CACHE_BYTES
    assert plan([None], free_bytes=GIB).num_bytes == GIB // 2
    many = [None] * 4096  # 8 MiB a page
    assert plan(many, max_model_len=4096, free_bytes=64 * GIB).num_pages == 257
