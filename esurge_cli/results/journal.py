"""What is known of each row that was written: a file of fixed records beside the output, in the output's order.

It begins with a line of JSON, the settings that the rows were made with. A record follows for each row, after the row's
own bytes have been written. Its checksum covers those as well, so that whatever a crash or an editor did to either file
is noticed.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson

from esurge_cli.results.result import Status

_VERSION = 1
_CHUNK = 1 << 16
MAX_LINES = (1 << 16) - 1
_OPTIONS = orjson.OPT_NON_STR_KEYS  # logit_bias has token ids
_FIELDS = struct.Struct("<QQQQBxH")
RECORD = struct.Struct("<QQQQBxHI")
DTYPE = np.dtype(
    {
        "names": ["row", "key", "fingerprint", "length", "status", "num_lines", "checksum"],
        "formats": ["<u8", "<u8", "<u8", "<u8", "u1", "<u2", "<u4"],
        "offsets": [0, 8, 16, 24, 32, 34, 36],
        "itemsize": RECORD.size,
    }
)


class Entry(NamedTuple):
    """A row of the output: `row` is its index, `key` a digest of its id, 0 where it has none.

    `length` are the bytes of its lines, `num_lines` their number, 65,535 for any more. `fingerprint` is a digest of the
    row and the settings that its lines were made with, 0 where nobody knows.
    """

    row: int
    key: int
    fingerprint: int
    length: int
    status: Status
    num_lines: int


def header(settings: Mapping[str, Any]) -> bytes:
    return orjson.dumps({"esurge_journal": _VERSION, "settings": settings}, option=_OPTIONS | orjson.OPT_APPEND_NEWLINE)


def record(entry: Entry, lines: bytes) -> bytes:
    return RECORD.pack(*entry, checksum(entry, lines))


def checksum(entry: Entry, lines: bytes) -> int:
    return zlib.crc32(lines, zlib.crc32(_FIELDS.pack(*entry)))


def read_settings(path: Path) -> dict[str, Any] | None:
    """What the rows were made with; None where there is no journal, or none that can be read."""
    try:
        with path.open("rb") as file:
            values = orjson.loads(file.readline())
        return values["settings"] if values["esurge_journal"] == _VERSION else None
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
        return None


def read_records(path: Path) -> Iterator[np.ndarray]:
    """The whole records of a journal, DTYPE [rows], some at a time."""
    with path.open("rb") as file:
        file.readline()
        while data := file.read(_CHUNK * RECORD.size):
            yield np.frombuffer(data, DTYPE, len(data) // RECORD.size)


def changed_settings(path: Path, settings: Mapping[str, Any]) -> list[str]:
    """What is not as it was when the rows were made, for people."""
    before = read_settings(path)
    if before is None:
        return []
    now = orjson.loads(orjson.dumps(settings, option=_OPTIONS))
    names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    return [f"{name} was {before.get(name)!r} and is {now.get(name)!r}" for name in names]
