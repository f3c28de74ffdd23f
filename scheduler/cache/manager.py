"""The pages of all requests, over all groups: how many fit, what a prefix hit gives, who holds what."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import takewhile

from scheduler.cache.groups import FullGroup, StateGroup, WindowedGroup, make_group
from scheduler.cache.hashing import extend_digests
from scheduler.cache.page_pool import NULL_PAGE, PagePool
from scheduler.cache.specs import CacheGroupsConfig, RecurrentStateSpec
from scheduler.config import CacheConfig
from scheduler.output import PageIds
from scheduler.request import EngineRequest


@dataclass(slots=True)
class _Holding:
    """What one running request has, in pages of all groups together, null pages not counted.

    It holds `num_held` pages and was admitted on the promise that it can come to hold `num_promised`. Each of its
    tables has `num_entries`, the first `num_cached` of which can be found by others.
    """

    num_held: int
    num_promised: int
    num_entries: int
    num_cached: int

    @property
    def num_owed(self) -> int:
        return max(0, self.num_promised - self.num_held)


class CacheManager:
    """Gives pages to requests, and finds the prefix that every group still has.

    A request is admitted where the pool has the pages of its first `horizon(request)` tokens, beside those owed to
    the requests admitted before it: so prompts that are computed chunk by chunk do not preempt each other. Tokens
    past the horizon take pages as they come. `max_chunk` is the most tokens of one request that a step computes.
    """

    def __init__(
        self,
        cache_config: CacheConfig,
        groups_config: CacheGroupsConfig,
        *,
        max_num_seqs: int,
        max_chunk: int,
        horizon: Callable[[EngineRequest], int],
    ) -> None:
        specs = [group.kv_cache_spec for group in groups_config.kv_cache_groups]
        _check_page_size(cache_config.page_size, groups_config)
        self.page_size = cache_config.page_size
        self.pool = PagePool(min(cache_config.num_pages, groups_config.num_pages), len(specs))
        self.groups = [make_group(spec, self.pool, index, max_num_seqs) for index, spec in enumerate(specs)]
        self._paged = [group for group in self.groups if isinstance(group, FullGroup)]
        self._states = [group for group in self.groups if isinstance(group, StateGroup)]
        self._has_windows = any(isinstance(group, WindowedGroup) for group in self.groups)
        # A hit would need the state at its end, which later tokens have replaced.
        self._enable_prefix_caching = cache_config.enable_prefix_caching and not self._states
        self._max_chunk = max_chunk
        self._horizon = horizon
        self._holdings: dict[str, _Holding] = {}
        self._num_owed = 0
        self.no_pages: PageIds = tuple([] for _ in self.groups)
        """What a request gets whose pages have room left; read only."""

    @property
    def can_roll_back(self) -> bool:
        """Whether computed tokens can be taken back, as rejected drafts are."""
        return not self._states

    def longest_request(self, limit: int) -> int:
        """The most tokens, up to `limit`, that one request alone can have in the pool, computed one by one."""
        for position in range(0, limit, self.page_size):
            if self.largest_chunk(position) < 1:
                return position
        return limit

    def largest_chunk(self, num_computed_tokens: int) -> int:
        """The most tokens that a step can add to a request's `num_computed_tokens` with the whole pool to itself."""
        if not self._paged:
            return self._max_chunk
        num_unseen = 0
        for group in self._paged:
            num_unseen += group.first_visible_page(num_computed_tokens)
        return (self.pool.num_usable + num_unseen) // len(self._paged) * self.page_size - num_computed_tokens

    def find_hit(self, request: EngineRequest) -> int:
        """The number of leading tokens whose keys and values all groups still have: whole pages, and never the last
        token, whose logits are wanted. None of them where the prompt's log-probabilities are wanted.
        """
        if not self._enable_prefix_caching or request.sampling_params.prompt_logprobs is not None:
            return 0
        num_pages = (request.num_tokens - 1) // self.page_size
        digests = extend_digests(request, num_pages, self.page_size)
        agreed = -1
        while agreed != num_pages:  # where one group must do with less, another may miss pages of its window there
            agreed = num_pages
            for group in self._paged:
                num_pages = group.longest_hit(digests, num_pages)
        return num_pages * self.page_size

    def admit(self, request: EngineRequest, num_hit_tokens: int, num_new_tokens: int, headroom: int) -> PageIds | None:
        """Give a request the pages of a hit and of its first chunk: all its pages, or None where the pool lacks what
        the request will need, or `headroom` pages a group besides.
        """
        num_hit_pages = num_hit_tokens // self.page_size
        hits = [group.hit_pages(request.page_digests, num_hit_pages) for group in self._paged]
        pages_hit = [page for table in hits for page in table if page != NULL_PAGE]
        num_free_hit = sum(self.pool.ref_counts[page] == 0 for page in pages_hit)
        count = self._num_pages(num_hit_tokens + num_new_tokens) - num_hit_pages

        promised = max(self._promise(request, num_hit_tokens), len(pages_hit) + count * len(self._paged))
        holding = _Holding(len(pages_hit), promised, num_hit_pages, num_hit_pages)
        needed = num_free_hit + holding.num_owed + headroom * len(self._paged)
        if needed + self._num_owed > self.pool.num_free:
            return None

        for group, table in zip(self._paged, hits, strict=True):
            group.begin(request.request_id, table)
        for state in self._states:
            state.begin(request.request_id)
        self._holdings[request.request_id] = holding
        self._num_owed += holding.num_owed
        self._take(request, holding, count, num_hit_tokens + num_new_tokens)
        return tuple(group.tables[request.request_id].copy() for group in self.groups)

    def extend(self, request: EngineRequest, num_new_tokens: int) -> PageIds | None:
        """Make room for a running request's next tokens, past those its pages are settled for: the new pages, or
        None where the pool lacks them.
        """
        holding = self._holdings[request.request_id]
        end = request.num_computed_tokens + num_new_tokens
        self._let_be_found(request, holding, request.num_computed_tokens)
        if self._has_windows:
            self._drop_unseen(request, holding)
        count = max(0, self._num_pages(end) - holding.num_entries)
        if count * len(self._paged) > self.pool.num_free:
            return None
        return self._take(request, holding, count, end)

    def release(self, request: EngineRequest) -> None:
        """Take all pages back; the full ones can be found until they are handed out anew."""
        holding = self._holdings.pop(request.request_id)
        self._let_be_found(request, holding, request.num_computed_tokens)
        self._num_owed -= holding.num_owed
        for group in self.groups:
            group.release(request.request_id)
        request.num_settled_tokens = 0

    def reset(self) -> bool:
        """Forget all cached pages; refused (False) while any page is held."""
        if self._holdings:
            return False
        self.pool.forget_all()
        return True

    def num_common_prefix_pages(self, request_ids: Collection[str]) -> list[int]:
        """For each group, the leading pages that all these requests hold (null pages end the count)."""
        return [
            self._num_common(group, request_ids) if request_ids and isinstance(group, FullGroup) else 0
            for group in self.groups
        ]

    def _num_common(self, group: FullGroup, request_ids: Collection[str]) -> int:
        first, *others = request_ids
        shared = group.tables[first]
        if self.pool.ref_counts[shared[0]] < len(request_ids):
            return 0  # as nearly always: too few hold the first page for it to be worth to look at every table
        if NULL_PAGE in shared:
            shared = shared[: shared.index(NULL_PAGE)]
        for request_id in others:
            table = group.tables[request_id][: len(shared)]
            if table != shared:
                pairs = zip(shared, table, strict=False)
                shared = [page for page, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
        return len(shared)

    def _promise(self, request: EngineRequest, num_computed_tokens: int) -> int:
        """The most pages that the request comes to hold on its way to its horizon."""
        horizon = self._horizon(request)
        chunk = min(self._max_chunk, max(1, request.num_tokens - num_computed_tokens))
        return min(self.pool.num_usable, sum(group.spec.max_pages(horizon, chunk) for group in self._paged))

    def _take(self, request: EngineRequest, holding: _Holding, count: int, end: int) -> PageIds:
        """Take `count` pages a group, for tokens up to the `end`-th."""
        pages = tuple([group.take(request.request_id, count) for group in self.groups])
        holding.num_entries += count
        self._settle(holding, holding.num_held + count * len(self._paged), holding.num_promised)
        self._let_be_found(request, holding, end)
        # After more than one token, pages may have left a window; after one, they can wait for the next page.
        is_chunk = end - request.num_computed_tokens > 1
        request.num_settled_tokens = end if self._has_windows and is_chunk else holding.num_entries * self.page_size
        return pages

    def _drop_unseen(self, request: EngineRequest, holding: _Holding) -> None:
        computed = request.num_computed_tokens
        dropped = sum([group.drop_unseen(request.request_id, computed) for group in self._paged])
        self._settle(holding, holding.num_held - dropped, self._promise(request, computed))

    def _settle(self, holding: _Holding, num_held: int, num_promised: int) -> None:
        self._num_owed -= holding.num_owed
        holding.num_held, holding.num_promised = num_held, num_promised
        self._num_owed += holding.num_owed

    def _let_be_found(self, request: EngineRequest, holding: _Holding, num_tokens: int) -> None:
        """Cache the pages that are full once `num_tokens` tokens are computed, those of draft tokens excepted.

        That may be before the step that computes them has run: it writes a layer's keys and values of the whole
        batch before it reads any, and steps run in order.
        """
        num_pages = min(num_tokens, request.num_tokens) // self.page_size
        if num_pages <= holding.num_cached or not self._enable_prefix_caching:
            return
        digests = extend_digests(request, num_pages, self.page_size)
        for group in self._paged:
            group.cache(request.request_id, digests, holding.num_cached, num_pages)
        holding.num_cached = num_pages

    def _num_pages(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)


def _check_page_size(page_size: int, config: CacheGroupsConfig) -> None:
    specs = [group.kv_cache_spec for group in config.kv_cache_groups]
    sizes = {spec.page_size for spec in specs if not isinstance(spec, RecurrentStateSpec)}
    if sizes - {page_size}:
        raise ValueError(f"pages of {page_size} tokens in the cache, of {sorted(sizes)} in its groups")
