"""One class a kind of layer: what a request holds, drops and finds again."""

from __future__ import annotations

from scheduler.cache.page_pool import NULL_PAGE, PagePool
from scheduler.cache.specs import (
    ChunkedLocalAttentionSpec,
    KVCacheSpec,
    PagedSpec,
    RecurrentStateSpec,
    SlidingWindowSpec,
)


class FullGroup:
    """Every token sees all before it: pages are kept until the end, and a hit needs all pages before it."""

    def __init__(self, spec: PagedSpec, pool: PagePool, index: int) -> None:
        self.spec = spec
        self.tables: dict[str, list[int]] = {}
        self._pool = pool
        self._index = index
        self._cached = pool.cached_pages(index)

    def first_visible_page(self, position: int) -> int:
        return self.spec.first_visible_token(position) // self.spec.page_size

    def longest_hit(self, digests: list[bytes], limit: int) -> int:
        """The most pages, up to `limit`, that a request with these digests can start behind."""
        for index in range(limit):
            if digests[index] not in self._cached:
                return index
        return limit

    def hit_pages(self, digests: list[bytes], num_pages: int) -> list[int]:
        """The table of a request that starts behind a hit of `num_pages`."""
        first = self.first_visible_page(num_pages * self.spec.page_size)
        return [NULL_PAGE] * first + [self._cached[digest] for digest in digests[first:num_pages]]

    def begin(self, request_id: str, table: list[int]) -> None:
        """Hold the pages of a hit."""
        for page in table:
            if page != NULL_PAGE:
                self._pool.share(page)
        self.tables[request_id] = table

    def take(self, request_id: str, count: int) -> list[int]:
        """Hold `count` more pages."""
        pages = self._pool.take(count)
        self.tables[request_id].extend(pages)
        return pages

    def cache(self, request_id: str, digests: list[bytes], start: int, stop: int) -> None:
        """Let the request's pages from `start` to before `stop` be found."""
        table = self.tables[request_id]
        for index in range(start, stop):
            if table[index] != NULL_PAGE:  # else it was dropped while its tokens were still on the device
                self._pool.cache(self._index, table[index], digests[index])

    def drop_unseen(self, request_id: str, num_computed_tokens: int) -> int:
        """Let go of the pages that no later token sees; returns how many."""
        return 0

    def release(self, request_id: str) -> None:
        """Let go of all the request's pages: its tail is evicted before its head."""
        self._pool.release(reversed(self.tables.pop(request_id)))


class WindowedGroup(FullGroup):
    """A token sees a stretch of tokens only: pages before it are dropped, and a hit needs the pages in it alone.

    Where the next token sees none of those before it, as at the start of a chunk, the last page is asked for all the
    same: it is the proof that they were computed.
    """

    def longest_hit(self, digests: list[bytes], limit: int) -> int:
        end, first = limit, self._first_needed(limit)
        for index in range(limit - 1, -1, -1):
            if index < first:
                break
            if digests[index] not in self._cached:
                end, first = index, self._first_needed(index)
        return end

    def _first_needed(self, num_pages: int) -> int:
        return min(self.first_visible_page(num_pages * self.spec.page_size), num_pages - 1)

    def drop_unseen(self, request_id: str, num_computed_tokens: int) -> int:
        table = self.tables[request_id]
        dropped = []
        for index in range(self.first_visible_page(num_computed_tokens) - 1, -1, -1):
            if table[index] == NULL_PAGE:
                break  # and so are all before it
            dropped.append(table[index])
            table[index] = NULL_PAGE
        self._pool.release(dropped)
        return len(dropped)


class StateGroup:
    """A recurrent state: one slot a request, and no hit, for the state before a token is not kept."""

    def __init__(self, num_slots: int) -> None:
        self.tables: dict[str, list[int]] = {}
        self._free = list(range(num_slots, 0, -1))

    def begin(self, request_id: str) -> None:
        self.tables[request_id] = [self._free.pop()]

    def take(self, request_id: str, count: int) -> list[int]:
        return []

    def release(self, request_id: str) -> None:
        self._free.extend(self.tables.pop(request_id))


def make_group(spec: KVCacheSpec, pool: PagePool, index: int, max_num_seqs: int) -> FullGroup | StateGroup:
    if isinstance(spec, RecurrentStateSpec):
        return StateGroup(max_num_seqs)
    if isinstance(spec, SlidingWindowSpec | ChunkedLocalAttentionSpec):
        return WindowedGroup(spec, pool, index)
    return FullGroup(spec, pool, index)
