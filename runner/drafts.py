"""Draft tokens by prompt lookup: what followed the last time that a sequence's last few tokens stood in it.

(Prompt lookup decoding, Saxena 2023: no second model, and right where an answer quotes its prompt or itself.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_NGRAMS = (4, 3, 2)
"""How many of the last tokens to look up, the most telling first."""

_WORTH_IT = 0.5
"""A draft pays where it is accepted more often than this: a row more costs a full batch about half of a token."""

_MEMORY = 0.8
_PROBE_EVERY = 16


@dataclass(slots=True)
class _Record:
    """How drafts of one request fared: `rate` is the moving share of accepted ones."""

    rate: float = _WORTH_IT
    steps_since_draft: int = 0


class PromptLookup:
    """Proposes up to `num_draft_tokens` tokens for a request, for as long as enough of them are accepted.

    A request whose drafts fail is left alone, but for a single token now and then that tells when it has begun to
    repeat itself. Only speed depends on any of this: drafts are verified exactly.
    """

    def __init__(self, num_draft_tokens: int) -> None:
        self._num_draft_tokens = num_draft_tokens
        self._records: dict[str, _Record] = {}

    def propose(self, req_id: str, token_ids: np.ndarray) -> list[int]:
        """Drafts to follow `token_ids`, int32 [tokens]; none where nothing repeats or drafts do not pay."""
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
        record.rate = _MEMORY * record.rate + (1 - _MEMORY) * num_accepted / num_drafts
        if num_accepted == num_drafts:
            record.rate = max(record.rate, _WORTH_IT)

    def forget(self, req_id: str) -> None:
        self._records.pop(req_id, None)


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
