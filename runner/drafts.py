"""Draft tokens by prompt lookup: what followed the last time that a sequence's last few tokens stood in it.

(Prompt lookup decoding, Saxena 2023: no second model, and right where an answer quotes its prompt or itself.) How many
of them a step takes is a question of goodput: the tokens that it can expect to gain for the time that it takes (Liu
et al. 2024, "Optimizing Speculative Decoding for Serving Large Language Models Using Goodput").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from runner.programs import bucket_of

_NGRAMS = (4, 3, 2)
"""How many of the last tokens to look up, the most telling first."""

_WORTH_IT = 0.5
"""A request is left alone where its drafts are accepted less often than this."""

_MARGIN = 1.1
"""What a larger step must promise to gain before it is tried: chances and times are estimates."""

_MEMORY = 0.8
_GROWTH = 0.8
"""How time grows with the size of a step, to guess what was never measured: less than in proportion."""

_PROBE_EVERY = 16


@dataclass(slots=True)
class _Record:
    """How drafts of one request fared: `rate` is the moving share of accepted ones among those that were looked at.

    (Nothing is learned of the drafts after the first that is wrong.)
    """

    rate: float = _WORTH_IT
    steps_since_draft: int = 0


class PromptLookup:
    """Proposes up to `num_draft_tokens` tokens for each request, for as long as enough of them are accepted.

    A request whose drafts fail is left alone, but for a single token now and then that tells when it has begun to
    repeat itself. Only speed depends on any of this: drafts are verified exactly.
    """

    def __init__(self, num_draft_tokens: int) -> None:
        self._num_draft_tokens = num_draft_tokens
        self._records: dict[str, _Record] = {}
        self.costs = StepCosts()

    def propose(self, requests: Sequence[tuple[str, np.ndarray]], is_decoding: bool) -> dict[str, list[int]]:
        """Drafts to follow the tokens, int32 [tokens], of each request.

        Where all that runs `is_decoding` the next step is known but for its drafts, and takes as many as pay.
        """
        drafts = {req_id: self._look_up(req_id, token_ids) for req_id, token_ids in requests}
        if not is_decoding:
            return drafts
        chances = sorted(
            (
                (self._records[req_id].rate ** (place + 1), req_id)
                for req_id, of_request in drafts.items()
                for place in range(len(of_request))
            ),
            reverse=True,
        )
        num_taken = self.costs.num_worth_it(len(drafts), [chance for chance, _ in chances])
        widths = Counter(req_id for _, req_id in chances[:num_taken])
        return {req_id: of_request[: widths[req_id]] for req_id, of_request in drafts.items()}

    def _look_up(self, req_id: str, token_ids: np.ndarray) -> list[int]:
        record = self._records.setdefault(req_id, _Record())
        record.steps_since_draft += 1
        width = self._num_draft_tokens
        if record.rate < _WORTH_IT:
            if record.steps_since_draft < _PROBE_EVERY:
                return []
            width = 1
        drafts = look_up(token_ids, width)
        if drafts:
            record.steps_since_draft = 0
        return drafts

    def observe(self, req_id: str, num_drafts: int, num_accepted: int) -> None:
        """Note how the drafts of a step fared."""
        record = self._records.setdefault(req_id, _Record())
        is_whole = num_accepted == num_drafts
        record.rate = _MEMORY * record.rate + (1 - _MEMORY) * num_accepted / (num_accepted + (not is_whole))
        if is_whole:
            record.rate = max(record.rate, _WORTH_IT)

    def forget(self, req_id: str) -> None:
        self._records.pop(req_id, None)


class StepCosts:
    """What steps of each bucket take, as measured while they run."""

    def __init__(self) -> None:
        self._seconds: dict[int, float | None] = {}

    def observe(self, bucket: int, seconds: float) -> None:
        """The first step of a bucket is left out: memory that it touches first makes it slow."""
        before = self._seconds.get(bucket)
        if before is not None:
            self._seconds[bucket] = _MEMORY * before + (1 - _MEMORY) * seconds
        else:
            self._seconds[bucket] = seconds if bucket in self._seconds else None

    def num_worth_it(self, num_requests: int, chances: Sequence[float]) -> int:
        """How many drafts the next step is to take, beside a token of each request.

        `chances` are of each draft to be accepted, the best first. Any that fit into the bucket are free.
        """
        best_count, best_rate = 0, 0.0
        bucket = bucket_of(num_requests)
        while True:
            count = min(bucket - num_requests, len(chances))
            rate = (num_requests + sum(chances[:count])) / self._estimate(bucket)
            if rate > best_rate * _MARGIN:
                best_count, best_rate = count, rate
            if count == len(chances):
                return best_count
            bucket = bucket_of(bucket + 1)

    def _estimate(self, bucket: int) -> float:
        """Seconds; those of a bucket that is not measured by the nearest one that is."""
        measured = {size: seconds for size, seconds in self._seconds.items() if seconds is not None} or {bucket: 1.0}
        nearest = min(measured, key=lambda size: abs(size - bucket))
        return measured[nearest] * (bucket / nearest) ** _GROWTH


def look_up(token_ids: np.ndarray, max_tokens: int) -> list[int]:
    """The tokens after the latest earlier occurrence of the sequence's end that has `max_tokens` after it.

    Where none has as many (the sequence repeats itself with a short period) it is the earliest that counts.
    """
    for n in _NGRAMS:
        if len(token_ids) <= n:
            continue
        end = token_ids[-n:]
        windows = np.lib.stride_tricks.sliding_window_view(token_ids[:-1], n)
        after = np.flatnonzero((windows == end).all(axis=1)) + n
        if len(after):
            whole = after[after + max_tokens <= len(token_ids)]
            start = whole[-1] if len(whole) else after[0]
            return token_ids[start : start + max_tokens].tolist()
    return []
