"""A folder of files, each with the rows of a range of the input."""

from __future__ import annotations

import fcntl
import os
import re
import resource
from collections import Counter
from pathlib import Path

from esurge_cli.results import disk
from esurge_cli.results.encodings import Encoding
from esurge_cli.results.file_writer import FileWriter, Permission, Rules
from esurge_cli.results.publish import Paths
from esurge_cli.results.result import KeptRow, Status
from esurge_cli.rows.row import Row, RowError
from runner.errors import UserError

_NAME = re.compile(r"\.?part-(\d{5,})\.")


class ShardWriter:
    """`part-00000`, `part-00001`, … of `rows` rows each: a shard is finished once the rows of its range are.

    Raises as FileWriter does.
    """

    num_held = 0

    def __init__(self, folder: Path, suffix: str, encoding: Encoding, rows: int, rules: Rules) -> None:
        self._folder = folder
        self._suffix = suffix
        self._encoding = encoding
        self._rows = rows
        self._rules = rules
        self._shards: dict[int, FileWriter] = {}
        self._current = -1
        self._past: set[int] = set()
        self._kept: Counter[Status] = Counter()
        self._num_changed = 0
        self.num_dropped = 0
        check_folder(folder, rules)
        folder.mkdir(exist_ok=True)
        self._lock = _locked(folder)
        self._stale = {number for number, _ in _parts(folder)}
        _allow_many_files()
        if rules.overwrite:
            _remove(folder, self._stale)

    @property
    def kept(self) -> Counter[Status]:
        return sum((shard.kept for shard in list(self._shards.values())), self._kept.copy())

    @property
    def num_changed(self) -> int:
        return self._num_changed + sum(shard.num_changed for shard in list(self._shards.values()))

    def admit(self, row: Row | RowError) -> Row | RowError | KeptRow | None:
        number = row.index // self._rows
        if number != self._current:
            self._past.add(self._current)
            self._stale.discard(number)
            self._shards[number] = FileWriter(self._paths(number), self._rules)
            self._current = number
        return self._shards[number].admit(row)

    def write(self, index: int, lines: bytes, status: Status) -> None:
        self._shards[index // self._rows].write(index, lines, status)

    def flush(self) -> None:
        for number, shard in list(self._shards.items()):
            if number in self._past and shard.num_written == shard.num_admitted:
                self._end(number, is_complete=True)
            else:
                shard.flush()

    def close(self, is_complete: bool) -> None:
        try:
            for number in list(self._shards):
                self._end(number, is_complete)
            if is_complete and not self._rules.is_part:
                _remove(self._folder, self._stale)
        finally:
            os.close(self._lock)

    def _end(self, number: int, is_complete: bool) -> None:
        shard = self._shards.pop(number)
        self._kept += shard.kept
        self._num_changed += shard.num_changed
        shard.close(is_complete)
        self.num_dropped += shard.num_dropped

    def _paths(self, number: int) -> Paths:
        return Paths(self._folder / f"part-{number:05}{self._suffix}", self._encoding)


def check_folder(folder: Path, allowed: Permission) -> None:
    """Raises UserError where it holds results that are to be left alone, or cannot be made."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; name a folder for the shards")
    if not folder.parent.is_dir():
        raise UserError(f"{folder.parent} is not a folder; make it, or name another one")
    if folder.is_dir() and not (allowed.overwrite or allowed.resume) and any(_parts(folder)):
        raise UserError(
            f"{folder} holds shards; name another folder, give --resume to go on with them, or --overwrite to "
            "replace them"
        )


def _parts(folder: Path) -> list[tuple[int, Path]]:
    """All that belongs to a shard, and which."""
    matches = ((_NAME.match(path.name), path) for path in folder.iterdir())
    return [(int(match[1]), path) for match, path in matches if match]


def _remove(folder: Path, numbers: set[int]) -> None:
    """Shards of ranges that the input does not have."""
    for number, path in _parts(folder):
        if number in numbers:
            disk.remove(path)


def _locked(folder: Path) -> int:
    lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise UserError(f"another run is writing {folder}; wait for it, or name another folder") from error
    return lock


def _allow_many_files() -> None:
    """Shards of a few rows are many at a time."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 1 << 16 if hard == resource.RLIM_INFINITY else min(hard, 1 << 16)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
