"""Digests that tell whether a row of the output is what this run would make of a row of the input."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import orjson

from esurge_cli.rows.row import Row, RowError
from esurge_cli.sampling import SamplingDefaults


class Fingerprints:
    """Of rows under `settings`: all that changes what is written of a row, by name, as JSON values."""

    def __init__(self, settings: Mapping[str, Any], sampling: SamplingDefaults) -> None:
        self._state = hashlib.blake2b(_dump(settings), digest_size=8)
        self._sampling = sampling

    def of(self, row: Row | RowError) -> int:
        """64 bits, never 0. A row whose random numbers derive from its index has another at another index."""
        state = self._state.copy()
        state.update(_dump(row.data))
        if isinstance(row, RowError):
            state.update(row.message.encode())
        elif self._sampling.draws_by_index(row.sampling):
            state.update(b"%d" % row.index)
        return int.from_bytes(state.digest()) or 1


def key_of(row_id: str | int | None) -> int:
    """64 bits that stand for an id, 0 for none; "1" and 1 are two ids."""
    if row_id is None:
        return 0
    return int.from_bytes(hashlib.blake2b(_dump(row_id), digest_size=8).digest()) or 1


def _dump(value: Any) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS, default=repr)
    except orjson.JSONEncodeError:  # whole numbers beyond 64 bits
        return repr(value).encode("utf-8", "backslashreplace")
