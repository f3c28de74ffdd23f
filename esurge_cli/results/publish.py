"""The last step of a file: rows that count, in their order, in one move."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from esurge_cli.results import disk
from esurge_cli.results.encodings import Encoding
from esurge_cli.results.journal import RECORD, header, read_records
from esurge_cli.results.spool import open_locked
from runner.errors import UserError

_PIECE = 1 << 20
_CLOSE = 4
_ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class Paths:
    """A file of results and what stands beside it, hidden: `spool` is the file itself where that can be appended to."""

    output: Path
    encoding: Encoding

    @property
    def spool(self) -> Path:
        return self.output if self.encoding.is_plain else self._beside("spool")

    @property
    def journal(self) -> Path:
        return self._beside("journal")

    @property
    def sorted(self) -> Path:
        return self._beside("sorted")

    @property
    def sorted_journal(self) -> Path:
        return self._beside("journal.sorted")

    def _beside(self, suffix: str) -> Path:
        return self.output.with_name(f".{self.output.name}.{suffix}")


def publish(paths: Paths, settings: Mapping[str, Any], is_kept: bytearray, ordered: bool) -> int:
    """Make the output of what the spool and its journal hold.

    Of the entries that were there before (as many as `is_kept` has) only those that are kept count, and of each index
    only the last. Returns how many rows are dropped by that. Raises OSError.
    """
    indices, ends = _columns(paths.journal)
    order, num_dropped = _order(indices, is_kept, ordered)
    if paths.encoding.is_plain and len(order) == len(indices) and bool((order == np.arange(len(order))).all()):
        return 0
    paths.encoding.write(paths.sorted, _Pieces(paths.spool, order, ends))
    _sync(paths.sorted)
    with paths.sorted_journal.open("wb") as journal:
        journal.write(header(settings))
        journal.writelines(_records(paths.journal, order))
    _sync(paths.sorted_journal)
    disk.replace(paths.sorted, paths.output)
    settle(paths)
    return num_dropped


def settle(paths: Paths) -> None:
    """Finish what a crash has left of the last step, or undo it: the output's own move is what decides."""
    if paths.sorted.exists():
        disk.remove(paths.sorted_journal)
        disk.remove(paths.sorted)
    elif paths.sorted_journal.exists():
        if not paths.encoding.is_plain:
            disk.remove(paths.spool)
        disk.replace(paths.sorted_journal, paths.journal)


def restore_spool(paths: Paths) -> None:
    """Where the output is complete already, and is none to append to, take its lines out of it again.

    Raises UserError where it cannot be read, or where another run is at it.
    """
    if paths.encoding.is_plain or paths.spool.exists() or not paths.output.exists():
        return
    restored = paths.spool.with_name(f"{paths.spool.name}.new")
    file = open_locked(restored)
    try:
        disk.truncate(file, 0)
        for lines in paths.encoding.read(paths.output):
            disk.write(file, lines)
        disk.sync(file)
        disk.replace(restored, paths.spool)
    except ValueError as error:
        raise UserError(f"{paths.output} is damaged ({error}); give --overwrite to replace it") from error
    finally:
        os.close(file)


def _columns(journal: Path) -> tuple[np.ndarray, np.ndarray]:
    """The index of each entry, uint32 [entries], and where its lines end, int64 [entries]."""
    chunks = [(chunk["row"].astype(np.uint32), chunk["length"].astype(np.int64)) for chunk in read_records(journal)]
    if not chunks:
        return np.zeros(0, np.uint32), np.zeros(0, np.int64)
    indices, lengths = (np.concatenate(column) for column in zip(*chunks, strict=True))
    return indices, np.cumsum(lengths, out=lengths)


def _order(indices: np.ndarray, is_kept: bytearray, ordered: bool) -> tuple[np.ndarray, int]:
    """The entries that count, in the order in which they are to stand, int32 [rows]; how many rows have none."""
    order = np.argsort(indices, kind="stable").astype(np.int32)
    is_last = np.ones(len(order), bool)
    in_order = indices[order]
    is_last[:-1] = in_order[:-1] != in_order[1:]
    counts = np.ones(len(order), bool)
    counts[: len(is_kept)] = np.frombuffer(is_kept, bool)
    latest = order[is_last]
    order = latest[counts[latest]]
    return order if ordered else np.sort(order), len(latest) - len(order)


@dataclass(frozen=True, slots=True)
class _Pieces:
    """The lines of the entries in `order`, some at a time, as often as they are asked for."""

    spool: Path
    order: np.ndarray
    ends: np.ndarray

    def __iter__(self) -> Iterator[bytes]:
        with self.spool.open("rb", buffering=0) as file:
            for first in range(0, len(self.order), _ROWS_AT_ONCE):
                chosen = self.order[first : first + _ROWS_AT_ONCE]
                ends = self.ends[chosen]
                starts = np.where(chosen > 0, self.ends[chosen - 1], 0)
                sizes = np.cumsum(ends - starts)
                cuts = np.searchsorted(sizes, np.arange(_PIECE, int(sizes[-1]), _PIECE))
                for part in np.split(np.arange(len(chosen)), cuts):
                    yield _read(file.fileno(), starts[part], ends[part])


def _read(file: int, starts: np.ndarray, ends: np.ndarray) -> bytes:
    """The spans of a file, joined: read as one where they lie close together, as those of rows in flight do."""
    if not len(starts):
        return b""
    first, size = int(starts.min()), int(ends.max() - starts.min())
    if size <= _CLOSE * _PIECE:
        data = os.pread(file, size, first)
        return b"".join([data[a:b] for a, b in zip((starts - first).tolist(), (ends - first).tolist(), strict=True)])
    return b"".join([os.pread(file, b - a, a) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)])


def _records(journal: Path, order: np.ndarray) -> Iterator[bytes]:
    with journal.open("rb") as file:
        header_size = len(file.readline())
        for first in range(0, len(order), _ROWS_AT_ONCE):
            starts = header_size + RECORD.size * order[first : first + _ROWS_AT_ONCE].astype(np.int64)
            yield _read(file.fileno(), starts, starts + RECORD.size)


def _sync(path: Path) -> None:
    with path.open("rb+") as file:
        disk.sync(file.fileno())
