"""Layers that do not see everything: windows, chunks and states, alone and side by side."""

from __future__ import annotations

import pytest
from scenarios import add, full, make_request, make_requests, make_scheduler, page_ids, step, update

from scheduler import CacheGroupSpec, ChunkedLocalAttentionSpec, EngineRequestStatus, SlidingWindowSpec
from scheduler.cache.specs import KVCacheSpec, RecurrentStateSpec, group_layers

ABORTED = EngineRequestStatus.FINISHED_ABORTED


def sliding(window: int, page_size: int = 16) -> SlidingWindowSpec:
    return SlidingWindowSpec(page_size, 1, 64, "float32", window)


def chunked(chunk: int, page_size: int = 16) -> ChunkedLocalAttentionSpec:
    return ChunkedLocalAttentionSpec(page_size, 1, 64, "float32", chunk)


def test_a_window_of_64_prefills_1000_tokens_in_9_pages() -> None:
    # 64 tokens a step and the 63 before them touch at most 9 pages of 16.
    scheduler = make_scheduler(sliding(64), num_pages=10, budget=64)
    add(scheduler, *make_requests(1, num_tokens=1000))
    for start in range(0, 1000, 64):
        assert step(scheduler).num_scheduled_tokens == {"0": min(64, 1000 - start)}
        assert scheduler.get_stats().num_used_pages <= 9
    step(scheduler)
    assert scheduler.get_stats().num_used_pages <= 5  # 64 tokens touch at most 5


def test_a_chunk_larger_than_the_pool_is_cut_to_what_the_pool_holds() -> None:
    scheduler = make_scheduler(sliding(16), num_pages=5, budget=1000)
    add(scheduler, *make_requests(1, num_tokens=200))
    assert step(scheduler).num_scheduled_tokens == {"0": 64}
    # At token 64 the pages before token 49 are of no use any more: three are free.
    assert step(scheduler).num_scheduled_tokens == {"0": 48}
    while scheduler.get_request_counts() != (0, 0):
        step(scheduler)
    assert scheduler.get_stats().num_preemptions == 0


def test_a_full_group_bounds_what_its_sliding_neighbour_would_allow() -> None:
    # At 160 tokens: 10 full pages, and 2 that hold the last 16 tokens: 12 pages.
    scheduler = make_scheduler(full(), sliding(16), num_pages=13)
    add(scheduler, make_request("160", [1] * 160, max_tokens=9), make_request("177", [2] * 177))
    output = step(scheduler)
    assert list(output.num_scheduled_tokens) == ["160"]
    assert scheduler.get_num_unfinished_requests() == 1, "the other ended in error"


def test_pages_out_of_the_window_are_free_while_the_request_runs() -> None:
    scheduler = make_scheduler(full(4), sliding(4, 4), page_size=4, num_pages=100)
    add(scheduler, *make_requests(1, num_tokens=40, max_tokens=20))
    step(scheduler)
    assert scheduler.get_stats().num_used_pages == 20
    step(scheduler)  # token 40 sees tokens 37 to 40
    assert scheduler.get_stats().num_used_pages == 11 + 2


def test_a_chunk_of_32_is_free_once_the_next_begins() -> None:
    scheduler = make_scheduler(chunked(32), budget=16)
    add(scheduler, *make_requests(1, num_tokens=80))
    used = []
    for _ in range(5):
        step(scheduler)
        used.append(scheduler.get_stats().num_used_pages)
    assert used == [1, 2, 1, 2, 1]


def test_the_window_of_the_next_token_is_enough_for_a_hit() -> None:
    # A pool of 13 for a sliding window of 32: after 160 tokens in steps of 16 the oldest pages are evicted.
    scheduler = make_scheduler(sliding(32), num_pages=9, budget=16)
    prompt = list(range(160))
    add(scheduler, make_request("a", prompt, max_tokens=1))
    while scheduler.has_unfinished_requests():
        step(scheduler)
    add(scheduler, make_request("b", [*prompt, 1]))
    output = scheduler.schedule()
    assert output.num_scheduled_tokens == {"b": 1}
    ((table,),) = [page_ids(output, "b")]
    assert table[:8] == [0] * 8  # token 160 sees tokens 129 to 160: pages 8, 9 and 10
    assert 0 not in table[8:] and len(table) == 11


def test_the_current_chunk_is_enough_for_a_hit() -> None:
    scheduler = make_scheduler(chunked(64), budget=16)
    prompt = list(range(160))
    add(scheduler, make_request("a", prompt, max_tokens=1))
    while scheduler.has_unfinished_requests():
        step(scheduler)
    cached = scheduler._cache.pool.cached_pages(0)
    for digest in list(cached)[:8]:  # the chunks of tokens 0 to 63 and 64 to 127
        del cached[digest]
    add(scheduler, make_request("b", [*prompt, 1]))
    output = scheduler.schedule()
    assert output.num_scheduled_tokens == {"b": 1}
    (table,) = page_ids(output, "b")
    assert table[:8] == [0] * 8
    assert 0 not in table[8:] and len(table) == 11


def test_at_the_start_of_a_chunk_the_page_before_it_is_found_but_not_held() -> None:
    scheduler = make_scheduler(chunked(64), budget=16)
    prompt = list(range(128))
    add(scheduler, make_request("a", prompt, max_tokens=1))
    while scheduler.has_unfinished_requests():
        step(scheduler)
    add(scheduler, make_request("b", [*prompt, 1]))
    output = scheduler.schedule()
    assert output.num_scheduled_tokens == {"b": 1}
    assert page_ids(output, "b")[0][:8] == [0] * 8


@pytest.mark.parametrize("spec", [sliding(1), sliding(64), chunked(16), chunked(32), chunked(64)])
def test_nothing_is_found_in_an_empty_cache(spec: SlidingWindowSpec) -> None:
    scheduler = make_scheduler(spec)
    add(scheduler, *make_requests(1, num_tokens=80))
    assert scheduler.schedule().num_scheduled_tokens == {"0": 80}


def test_a_hit_is_the_longest_that_full_and_sliding_groups_both_honour() -> None:
    scheduler = make_scheduler(full(), sliding(32), num_pages=1000)
    prompt = list(range(160))
    add(scheduler, make_request("a", prompt, max_tokens=1))
    step(scheduler)
    full_group, sliding_group = scheduler._cache.groups
    cached = sliding_group._cached  # type: ignore[union-attr]
    # Evict the sliding group's page 6: behind pages 7 and 8 the window of 32 is whole again from token 144 on.
    digests = list(cached)
    lost = cached.pop(digests[6])
    add(scheduler, make_request("b", [*prompt[:145], 999]), make_request("c", [*prompt[:130], 999]))
    output = scheduler.schedule()
    hits = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
    # Token 144 sees tokens 113 to 144: pages 7 and 8. Before, no window without page 6 but behind page 5.
    assert hits == {"b": 144, "c": 96}
    cached[digests[6]] = lost
    assert len(full_group.tables["b"]) == len(sliding_group.tables["b"])


def test_a_group_that_can_honour_less_makes_another_look_again() -> None:
    scheduler = make_scheduler(sliding(20, 4), sliding(8, 4), page_size=4, num_pages=1000)
    prompt = list(range(41))
    add(scheduler, make_request("a", prompt, max_tokens=1))
    step(scheduler)
    large, small = (group._cached for group in scheduler._cache.groups)  # type: ignore[union-attr]
    for cached, lost in ((large, (3, 9)), (small, (8,))):
        for digest in [list(cached)[page] for page in lost]:
            del cached[digest]
    add(scheduler, make_request("b", prompt))
    # The large window can have 36 tokens (pages 4 to 8), the small one then 32 (6 and 7); for 32 the large one lacks
    # page 3, and can have 12; so can the small one.
    assert scheduler.schedule().scheduled_new_reqs[0].num_computed_tokens == 12


def test_a_page_dropped_before_its_tokens_are_known_is_not_offered() -> None:
    """Found by the state machine: with a window of one token and steps scheduled ahead, the null page was cached."""
    scheduler = make_scheduler(sliding(1, 1), page_size=1, async_scheduling=True)
    add(scheduler, make_request("a", [5]))
    in_flight = [scheduler.schedule() for _ in range(3)]
    for output in in_flight:
        update(scheduler, output, {"a": [6]})
        scheduler.schedule()
    assert scheduler._cache.pool.num_cached > 0
    assert 0 not in scheduler._cache.pool.cached_pages(0).values()


def test_a_state_takes_one_slot_a_request_and_no_page() -> None:
    scheduler = make_scheduler(full(), RecurrentStateSpec(1024), max_num_seqs=2, num_pages=100)
    add(scheduler, *make_requests(3, num_tokens=40))
    output = step(scheduler)
    slots = [page_ids(output, request_id)[1] for request_id in ("0", "1")]
    assert sorted(slots) == [[1], [2]]
    assert scheduler.get_stats().num_used_pages == 6
    assert page_ids(step(scheduler), "0") == ([], [])
    scheduler.finish_requests("0", ABORTED)
    assert page_ids(step(scheduler), "2")[1] == slots[0]


def test_a_state_is_not_found_again() -> None:
    scheduler = make_scheduler(full(), RecurrentStateSpec(1024))
    add(scheduler, make_request("a", [1] * 40))
    step(scheduler)
    add(scheduler, make_request("b", [1] * 40))
    assert scheduler.schedule().num_scheduled_tokens["b"] == 40


def test_states_alone_need_no_pages_at_all() -> None:
    scheduler = make_scheduler(RecurrentStateSpec(1024), num_pages=2)
    add(scheduler, *make_requests(4, num_tokens=5000, max_tokens=3))
    while scheduler.has_unfinished_requests():
        step(scheduler)
    assert scheduler.get_stats().num_preemptions == 0


def test_drafts_are_refused_where_a_state_cannot_be_taken_back() -> None:
    with pytest.raises(ValueError, match="recurrent"):
        make_scheduler(RecurrentStateSpec(1024), num_drafts=2)


@pytest.mark.parametrize("spec", [full(4), sliding(1, 4), sliding(2, 4), sliding(9, 4), chunked(6, 4), chunked(8, 4)])
@pytest.mark.parametrize("batch", [1, 3, 8])
def test_max_pages_is_what_the_worst_position_needs(spec: SlidingWindowSpec, batch: int) -> None:
    num_tokens = 60
    worst = 0
    for start in range(num_tokens):
        stop = min(num_tokens, start + batch)
        worst = max(worst, len({token // 4 for token in range(spec.first_visible_token(start), stop)}))
    assert worst <= spec.max_pages(num_tokens, batch) <= worst + 1


def test_layers_are_grouped_by_what_they_see() -> None:
    # Gemma 3's pattern: five sliding layers and a full one, three times.
    specs: dict[str, KVCacheSpec] = {f"layers.{i}": full() if i % 6 == 5 else sliding(512) for i in range(18)}
    groups = group_layers(specs)
    assert [len(group.layer_names or []) for group in groups] == [3, 3, 3, 3, 3, 3]
    assert sum(group.kv_cache_spec == full() for group in groups) == 1
    assert sorted(name for group in groups for name in group.layer_names or []) == sorted(specs)


def test_layers_of_about_equal_numbers_are_two_groups() -> None:
    specs: dict[str, KVCacheSpec] = {f"layers.{i}": full() if i < 5 else sliding(512) for i in range(11)}
    assert [len(group.layer_names or []) for group in group_layers(specs)] == [5, 6]


def test_all_states_are_one_group_however_many_layers_attend() -> None:
    state = RecurrentStateSpec(64)
    specs: dict[str, KVCacheSpec] = {f"layers.{i}": full() if i % 4 == 3 else state for i in range(12)}
    assert group_layers(specs) == [
        CacheGroupSpec(state, [f"layers.{i}" for i in range(12) if i % 4 != 3]),
        CacheGroupSpec(full(), ["layers.3", "layers.7", "layers.11"]),
    ]
