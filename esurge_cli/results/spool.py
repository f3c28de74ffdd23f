"""Rows' lines in a file, as they finish, and a journal of which rows they are: what survives whatever happens."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from esurge_cli.errors import RunFailed
from esurge_cli.results import disk
from esurge_cli.results.journal import Entry, header, record
from runner.errors import UserError

SYNC_INTERVAL = 5.0
"""Seconds of work that the end of the machine may cost; the end of the program costs none that was flushed."""


class Spool:
    """The end of a file of lines, and of its journal. Nobody else writes to either while it is open.

    The lines of a row are written before its record, so that a row with a record is whole. Raises UserError where
    another run has the file open, RunFailed where the disk takes no more: then only whole rows are left.
    """

    def __init__(self, path: Path, journal: Path) -> None:
        self.path = path
        self.journal = journal
        self._lines: list[bytes] = []
        self._records: list[bytes] = []
        self._synced = time.monotonic()
        self._file = open_locked(path)
        self._journal_file = -1

    def start(self, size: int, settings: Mapping[str, Any] | None) -> None:
        """Go on after `size` bytes: with a new journal where there are `settings`, else with the one that is there."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            disk.truncate(self._file, size)
            self._size = size
            if settings is not None:
                self._journal_file = os.open(self.journal, flags | os.O_TRUNC, 0o666)
                disk.write(self._journal_file, header(settings))
            else:
                self._journal_file = os.open(self.journal, flags)
        except OSError as error:
            raise RunFailed(f"{self.path} cannot be written: {error.strerror}") from error

    def read(self, start: int, end: int) -> bytes:
        """Bytes of what was there at the start. Any thread may."""
        return os.pread(self._file, end - start, start)

    def append(self, entry: Entry, lines: bytes) -> None:
        self._lines.append(lines)
        self._records.append(record(entry, lines))

    def flush(self) -> None:
        """Write what was appended."""
        if not self._records:
            return
        try:
            self._write()
            if time.monotonic() - self._synced >= SYNC_INTERVAL:
                self.sync()
        except OSError as error:
            self._keep_whole_rows()
            self._lines.clear()
            self._records.clear()
            raise RunFailed(
                f"{self.path} cannot be written: {error.strerror}; the rows that were finished are whole"
            ) from error

    def sync(self) -> None:
        """Raises OSError."""
        disk.sync(self._file)
        disk.sync(self._journal_file)
        self._synced = time.monotonic()

    def close(self) -> None:
        """Idempotent; the lock is let go of."""
        for file in (self._file, self._journal_file):
            if file >= 0:
                os.close(file)
        self._file = self._journal_file = -1

    def _write(self) -> None:
        lines = b"".join(self._lines)
        disk.write(self._file, lines)
        disk.write(self._journal_file, b"".join(self._records))
        self._size += len(lines)
        self._lines.clear()
        self._records.clear()

    def _keep_whole_rows(self) -> None:
        """Of what did not fit on the disk, keep the rows that did; those without a record are made again."""
        room = os.fstat(self._file).st_size - self._size
        num_whole, size = 0, 0
        while num_whole < len(self._lines) and size + len(self._lines[num_whole]) <= room:
            size += len(self._lines[num_whole])
            num_whole += 1
        with contextlib.suppress(OSError):
            disk.truncate(self._file, self._size + size)
        with contextlib.suppress(OSError):
            disk.write(self._journal_file, b"".join(self._records[:num_whole]))


def open_locked(path: Path) -> int:
    """To read and write, made where it is missing, and left as it is otherwise.

    Raises UserError where it cannot be, or where another process has it.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file), path.stat()):
            return file
    except OSError:
        pass
    os.close(file)
    raise UserError(f"another run is writing {path}; wait for it, or name another file")
