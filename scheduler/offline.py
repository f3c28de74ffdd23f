"""The order of requests that wastes least, where nobody waits for any one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import groupby

from scheduler.request import EngineRequest

_MOST_FORKS = 64
"""The forks one behind the other that are told apart; behind the last, requests stay in the order of their tokens."""


class LengthForecast:
    """How long requests become: their prompt, and the share of their `max_tokens` that those before them came to use.

    At first they are taken to use it all; the longer the run, the more what was seen counts.
    """

    def __init__(self) -> None:
        self._num_allowed = self._num_generated = 16 * 512

    def observe(self, request: EngineRequest) -> None:
        """Learn from a request that ended by itself."""
        self._num_allowed += request.max_num_tokens - request.num_prompt_tokens
        self._num_generated += len(request.output_token_ids)

    def length(self, request: EngineRequest) -> int:
        allowed = request.max_num_tokens - request.num_prompt_tokens
        expected = -(-allowed * self._num_generated // self._num_allowed)
        # The last token is not computed.
        return max(request.num_tokens, request.num_prompt_tokens + expected - 1)


def throughput_order(
    requests: list[EngineRequest], page_size: int, num_cached_tokens: Callable[[EngineRequest], int]
) -> list[EngineRequest]:
    """Requests that share leading pages follow each other: a page is computed once, and still cached for the others.

    The prompts are the leaves of a tree of pages, gone through depth first. Of the branches at a fork the one comes
    first of which most is cached already, before that is evicted; then the one with the longest request: the short
    ones are left to fill the batch at the end, which would otherwise run nearly empty until its longest is done.
    """
    by_salt: dict[str | None, list[EngineRequest]] = {}
    for request in requests:
        by_salt.setdefault(request.cache_salt, []).append(request)
    order = _PrefixTree(page_size, cache(num_cached_tokens))
    branches = [sorted(branch, key=lambda request: request.prompt_token_ids) for branch in by_salt.values()]
    return order.best_first([order.of(branch, 0, _MOST_FORKS) for branch in branches])


@dataclass(slots=True, frozen=True)
class _PrefixTree:
    page_size: int
    num_cached_tokens: Callable[[EngineRequest], int]

    def of(self, requests: list[EngineRequest], depth: int, most_forks: int) -> list[EngineRequest]:
        """Order requests, given in the order of their tokens, that share their first `depth` tokens."""
        if len(requests) == 1 or most_forks == 0:
            return requests
        size = self.page_size
        depth += _num_shared(requests[0], requests[-1], depth) // size * size
        branches: list[list[EngineRequest]] = []
        for page, sharing in groupby(requests, lambda request: request.prompt_token_ids[depth : depth + size]):
            if len(page) < size:
                branches += [[request] for request in sharing]
            else:
                branches.append(self.of(list(sharing), depth + size, most_forks - 1))
        return self.best_first(branches)

    def best_first(self, branches: list[list[EngineRequest]]) -> list[EngineRequest]:
        branches.sort(key=self._merit, reverse=True)
        return [request for branch in branches for request in branch]

    def _merit(self, branch: list[EngineRequest]) -> tuple[int, int]:
        return self.num_cached_tokens(branch[0]), max(request.max_num_tokens for request in branch)


def _num_shared(first: EngineRequest, last: EngineRequest, start: int) -> int:
    """The tokens from `start` on that two requests share, and so do all that are between them in order."""
    pairs = zip(first.prompt_token_ids[start:], last.prompt_token_ids[start:], strict=False)
    return next(
        (index for index, (a, b) in enumerate(pairs) if a != b),
        min(first.num_prompt_tokens, last.num_prompt_tokens) - start,
    )
