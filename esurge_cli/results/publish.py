"""The last step of a file: rows that count, in their order, in one move."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from esurge_cli.results import disk
from esurge_cli.results.encodings import Encoding
from esurge_cli.results.journal import DTYPE, header, read_records
from esurge_cli.results.spool import open_locked
from runner.errors import UserError

_PIECE = 1 << 20
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


def publish(paths: Paths, settings: Mapping[str, Any], is_kept: bytearray, ordered: bool) -> None:
    """Make the output of what the spool and its journal hold.

    Of the entries that were there before (as many as `is_kept` has) only those that are kept count, and of each index
    only the last. Raises OSError.
    """
    indices, ends = _columns(paths.journal)
    order = _order(indices, is_kept, ordered)
    if paths.encoding.is_plain and len(order) == len(indices) and bool((order == np.arange(len(order))).all()):
        return
    paths.encoding.write(paths.sorted, _Pieces(paths.spool, order, ends))
    _sync(paths.sorted)
    with paths.sorted_journal.open("wb") as journal:
        journal.write(header(settings))
        journal.writelines(_records(paths.journal, order))
    _sync(paths.sorted_journal)
    disk.replace(paths.sorted, paths.output)
    settle(paths)


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
    """The index of each entry, and where its lines end, int64 [entries]."""
    chunks = [(chunk["row"].astype(np.int64), chunk["length"].astype(np.int64)) for chunk in read_records(journal)]
    if not chunks:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    indices, lengths = (np.concatenate(column) for column in zip(*chunks, strict=True))
    return indices, np.cumsum(lengths, out=lengths)


def _order(indices: np.ndarray, is_kept: bytearray, ordered: bool) -> np.ndarray:
    """The entries that count, in the order in which they are to stand, int64 [rows]."""
    order = np.argsort(indices, kind="stable")
    is_last = np.ones(len(order), bool)
    in_order = indices[order]
    is_last[:-1] = in_order[:-1] != in_order[1:]
    counts = np.ones(len(order), bool)
    counts[: len(is_kept)] = np.frombuffer(is_kept, bool)
    order = order[is_last & counts[order]]
    return order if ordered else np.sort(order)


@dataclass(frozen=True, slots=True)
class _Pieces:
    """The lines of the entries in `order`, some at a time, as often as they are asked for."""

    spool: Path
    order: np.ndarray
    ends: np.ndarray

    def __iter__(self) -> Iterator[bytes]:
        size = int(self.ends[-1]) if len(self.ends) else 0
        if not size:
            return
        with self.spool.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as data:
            for first in range(0, len(self.order), _ROWS_AT_ONCE):
                chosen = self.order[first : first + _ROWS_AT_ONCE]
                starts = np.where(chosen > 0, self.ends[chosen - 1], 0)
                parts, size = [], 0
                for start, end in zip(starts.tolist(), self.ends[chosen].tolist(), strict=True):
                    parts.append(data[start:end])
                    size += end - start
                    if size >= _PIECE:
                        yield b"".join(parts)
                        parts, size = [], 0
                yield b"".join(parts)


def _records(journal: Path, order: np.ndarray) -> Iterator[bytes]:
    if not len(order):
        return
    with journal.open("rb") as file:
        start = len(file.readline())
    records = np.memmap(journal, DTYPE, "r", start, int(order.max()) + 1)
    for first in range(0, len(order), _ROWS_AT_ONCE):
        yield records[order[first : first + _ROWS_AT_ONCE]].tobytes()


def _sync(path: Path) -> None:
    with path.open("rb+") as file:
        disk.sync(file.fileno())
