"""The one pool of pages: who holds a page, which pages are free, and what the free ones still contain."""

from __future__ import annotations

from collections.abc import Iterable

NULL_PAGE = 0
"""Stands in a page table where no later token looks; never handed out, written to by padding only."""


class PagePool:
    """Pages 1 to `num_pages - 1`, each held by `ref_counts[page]` requests.

    A page that nobody holds is free. The free pages form a ring through the null page, linked both ways, so that any
    of them can be taken out in O(1): first those without contents worth keeping, then the cached ones, the least
    recently used first. A cached page can be found by its digest until it is handed out anew.
    """

    def __init__(self, num_pages: int, num_groups: int) -> None:
        if num_pages < 2:
            raise ValueError(f"num_pages must be at least 2 (the null page and one to use), not {num_pages}")
        self.num_pages = num_pages
        self.num_free = num_pages - 1
        self.ref_counts = [0] * num_pages
        self._next = [*range(1, num_pages), NULL_PAGE]
        self._previous = [num_pages - 1, *range(num_pages - 1)]
        self._digests: list[bytes | None] = [None] * num_pages
        self._groups = [0] * num_pages
        self._cached: list[dict[bytes, int]] = [{} for _ in range(num_groups)]

    @property
    def num_usable(self) -> int:
        """All pages but the null page."""
        return self.num_pages - 1

    @property
    def num_cached(self) -> int:
        """Pages, held or free, that a request could find."""
        return sum(map(len, self._cached))

    def cached_pages(self, group: int) -> dict[bytes, int]:
        """The group's pages by digest, to look up in."""
        return self._cached[group]

    def take(self, count: int) -> list[int]:
        """Hand out `count` free pages (no more than there are), each held once; what they cached is forgotten."""
        pages = []
        for _ in range(count):
            page = self._next[NULL_PAGE]
            self._unlink(page)
            self._forget(page)
            self.ref_counts[page] = 1
            pages.append(page)
        return pages

    def share(self, page: int) -> None:
        """Hold a cached page once more."""
        if self.ref_counts[page] == 0:
            self._unlink(page)
        self.ref_counts[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """Let pages go, the first to be evicted first; null pages are passed over."""
        for page in pages:
            if page == NULL_PAGE:
                continue
            self.ref_counts[page] -= 1
            if self.ref_counts[page] == 0:
                # A page that nobody can find is of no use to anyone: it is the next to be handed out.
                self._link_after(NULL_PAGE if self._digests[page] is None else self._previous[NULL_PAGE], page)

    def cache(self, group: int, page: int, digest: bytes) -> None:
        """Let a full page be found by its digest; of pages with the same contents the first one stays the one found."""
        if self._cached[group].setdefault(digest, page) == page:
            self._digests[page] = digest
            self._groups[page] = group

    def forget_all(self) -> None:
        """Empty the cache. Held pages stay held."""
        self._digests = [None] * self.num_pages
        for cached in self._cached:
            cached.clear()

    def _forget(self, page: int) -> None:
        digest = self._digests[page]
        if digest is not None:
            del self._cached[self._groups[page]][digest]
            self._digests[page] = None

    def _unlink(self, page: int) -> None:
        before, after = self._previous[page], self._next[page]
        self._next[before] = after
        self._previous[after] = before
        self.num_free -= 1

    def _link_after(self, before: int, page: int) -> None:
        after = self._next[before]
        self._next[before] = self._previous[after] = page
        self._previous[page] = before
        self._next[page] = after
        self.num_free += 1
