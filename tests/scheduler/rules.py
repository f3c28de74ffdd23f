"""The scheduler's rules in their plainest form, checked after every move of the state machine."""

from __future__ import annotations

from collections import Counter

from fake_runner import next_token

from scheduler import EngineRequest, FinishReason, Scheduler, SchedulerConfig
from scheduler.cache.groups import FullGroup
from scheduler.cache.specs import KVCacheSpec, RecurrentStateSpec


def longest_request(specs: list[KVCacheSpec], page_size: int, num_pages: int, max_model_len: int) -> int:
    """The longest request, its last token never computed, that a pool of `num_pages` holds: counted page by page."""
    for position in range(max_model_len - 1):
        seen_pages = 0
        for spec in specs:
            if not isinstance(spec, RecurrentStateSpec):
                visible = range(spec.first_visible_token(position), position + 1)
                seen_pages += len({token // page_size for token in visible})
        if seen_pages > num_pages - 1:
            return position + 1
    return max_model_len


def whole_answer(request: EngineRequest, limit: int, vocabulary: int) -> tuple[list[int], FinishReason, int | None]:
    """A request's tokens, why it ends and its stop reason, if nothing disturbs it."""
    params = request.sampling_params
    eos = request.eos_token_id if isinstance(request.eos_token_id, list) else [request.eos_token_id]
    tokens = list(request.prompt_token_ids)
    while True:
        output = tokens[request.num_prompt_tokens :]
        if output and len(output) >= params.min_tokens:
            if output[-1] in eos and not params.ignore_eos:
                return output, FinishReason.STOP, None
            if output[-1] in params.stop_token_ids:
                return output, FinishReason.STOP, output[-1]
        if len(output) == params.max_tokens or len(tokens) == limit:
            return output, FinishReason.LENGTH, None
        tokens.append(next_token(tokens, vocabulary))


def check_pages(scheduler: Scheduler) -> None:
    """Every page is free or held, as often as tables name it; what can be found is what a table or no one holds."""
    pool = scheduler._cache.pool
    free = []
    page = pool._next[0]
    while page != 0:
        assert pool._previous[pool._next[page]] == page
        free.append(page)
        page = pool._next[page]
    groups = [group for group in scheduler._cache.groups if isinstance(group, FullGroup)]
    held = Counter(page for group in groups for table in group.tables.values() for page in table if page != 0)
    assert len(free) == len(set(free)) == pool.num_free
    assert set(free).isdisjoint(held)
    assert len(free) + len(held) == pool.num_usable
    assert [pool.ref_counts[page] for page in range(1, pool.num_pages)] == [
        held[page] for page in range(1, pool.num_pages)
    ]
    cached = [page for group in range(len(scheduler._cache.groups)) for page in pool.cached_pages(group).values()]
    assert len(cached) == len(set(cached)) and 0 not in cached
    owner = [(group, page) for group, found in enumerate(groups) for table in found.tables.values() for page in table]
    assert len({page for _, page in set(owner) if page}) == len({entry for entry in owner if entry[1]}), "two groups"
    for request_id in scheduler._running:
        tables = [group.tables[request_id] for group in groups]
        assert len({len(table) for table in tables}) <= 1
    assert all(set(group.tables) == set(scheduler._running) for group in scheduler._cache.groups)


def check_promises(scheduler: Scheduler) -> None:
    """What is owed is the sum of what each running request is owed, and it is counted right."""
    cache = scheduler._cache
    assert set(cache._holdings) == set(scheduler._running)
    assert cache._num_owed == sum(holding.num_owed for holding in cache._holdings.values())
    for request_id, holding in cache._holdings.items():
        tables = [group.tables[request_id] for group in cache.groups if isinstance(group, FullGroup)]
        assert holding.num_held == sum(page != 0 for table in tables for page in table)


def check_step(config: SchedulerConfig, counts: dict[str, int], total: int, num_running: int) -> None:
    assert sum(counts.values()) == total <= config.max_num_batched_tokens
    assert all(0 < count <= config.max_chunk for count in counts.values())
    assert len(counts) <= num_running <= config.max_num_seqs
