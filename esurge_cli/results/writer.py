"""Where lines go: a file or standard output. Whoever writes here gives each row's lines at once, as bytes."""

from __future__ import annotations

import contextlib
import os
import sys
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Protocol

from esurge_cli.errors import OutputClosed, RunFailed
from runner.errors import UserError

Paused = Callable[[], contextlib.AbstractContextManager[None]]

_COPY_BUFFER = 1 << 20


class Writer(Protocol):
    """Takes the lines of each row, by its index: once for every index from 0, in any order."""

    def write(self, index: int, lines: bytes) -> None:
        """`lines` are complete ones, or none for a row that is left out."""

    def flush(self) -> None:
        """Let go of what was written, so that others see it."""

    @property
    def num_held(self) -> int:
        """Rows that wait for one before them."""

    def close(self, is_complete: bool) -> None:
        """`is_complete` where every row was written."""


def check_output(path: Path, overwrite: bool) -> None:
    """Raises UserError where the file exists and is not to be overwritten, or cannot be made."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; name a file")
    if path.is_file() and not overwrite:
        raise UserError(f"{path} exists; name another file, or give --overwrite to replace it")
    if not path.parent.is_dir():
        raise UserError(f"{path.parent} is not a folder; make it, or name another file")


def make_writer(path: Path | None, overwrite: bool, ordered: bool, paused: Paused) -> Writer:
    """For a file, or (None, a named pipe, a device) something that is written once and for all.

    Within `paused` nobody else writes to the terminal.
    """
    if path is None:
        return PipeWriter(sys.stdout.buffer, ordered, paused if sys.stdout.isatty() else contextlib.nullcontext)
    if path.exists() and not path.is_file():
        return PipeWriter(path.open("wb"), ordered)
    return FileWriter(path, overwrite, ordered)


class FileWriter:
    """A file, appended to as rows finish. At its end, where it is complete, the rows are put in order in one move.

    Raises RunFailed where the disk takes no more: the lines before are whole.
    """

    def __init__(self, path: Path, overwrite: bool, ordered: bool = True) -> None:
        self._path = path.resolve()  # a link stays one
        self._ordered = ordered
        self._indices, self._offsets = array("Q"), array("Q")
        self._size = 0
        try:
            self._file = path.open("wb" if overwrite else "xb")
        except FileExistsError as error:
            raise UserError(f"{path} exists; name another file, or give --overwrite to replace it") from error
        except OSError as error:
            raise UserError(f"{path} cannot be written: {error.strerror}") from error

    num_held = 0

    def write(self, index: int, lines: bytes) -> None:
        self._indices.append(index)
        self._offsets.append(self._size)
        self._size += len(lines)
        self._do(lambda: self._file.write(lines))

    def flush(self) -> None:
        self._do(self._file.flush)

    def close(self, is_complete: bool) -> None:
        self._do(self._file.close)
        if is_complete and self._ordered and not _is_sorted(self._indices):
            self._do(self._put_in_order)

    def _do(self, action: Callable[[], object]) -> None:
        try:
            action()
        except OSError as error:
            self._drop_torn_line()
            raise RunFailed(f"{self._path} cannot be written: {error.strerror}; its lines are complete") from error

    def _drop_torn_line(self) -> None:
        """Cut off what was written of a line that did not fit."""
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError), self._path.open("r+b") as file:
            file.truncate(_end_of_last_line(file))

    def _put_in_order(self) -> None:
        import numpy as np

        order = np.argsort(np.frombuffer(self._indices, np.uint64), kind="stable")
        starts = np.frombuffer(self._offsets, np.uint64)
        ends = np.append(starts[1:], np.uint64(self._size))
        sorted_path = self._path.with_name(f".{self._path.name}.sorted")
        try:
            with self._path.open("rb") as source, sorted_path.open("wb", _COPY_BUFFER) as target:
                for i in order:
                    source.seek(int(starts[i]))
                    target.write(source.read(int(ends[i] - starts[i])))
                target.flush()
                os.fsync(target.fileno())
            sorted_path.replace(self._path)
        finally:
            sorted_path.unlink(missing_ok=True)


class PipeWriter:
    """Standard output, or what is like it. In order, a row waits until all before it are out."""

    def __init__(self, file: BinaryIO, ordered: bool = True, paused: Paused = contextlib.nullcontext) -> None:
        self._file = file
        self._ordered = ordered
        self._paused = paused
        self._held: dict[int, bytes] = {}
        self._ready: list[bytes] = []
        self._next = 0

    @property
    def num_held(self) -> int:
        return len(self._held)

    def write(self, index: int, lines: bytes) -> None:
        if not self._ordered:
            self._ready.append(lines)
            return
        self._held[index] = lines
        while self._next in self._held:
            self._ready.append(self._held.pop(self._next))
            self._next += 1

    def flush(self) -> None:
        data = b"".join(self._ready)
        self._ready.clear()
        if not data:
            return
        try:
            with self._paused():
                self._file.write(data)
                self._file.flush()
        except BrokenPipeError as error:
            raise OutputClosed from error
        except OSError as error:
            raise RunFailed(f"the results cannot be written: {error.strerror}") from error

    def close(self, is_complete: bool) -> None:
        """What is held back of an incomplete run comes out too, in order: it is finished."""
        self._ready += [self._held.pop(index) for index in sorted(self._held)]
        self.flush()


def _is_sorted(indices: array[int]) -> bool:
    previous = 0
    for index in indices:
        if index < previous:
            return False
        previous = index
    return True


def _end_of_last_line(file: BinaryIO) -> int:
    r"""The offset after the last \n of a file."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        start = max(0, end - _COPY_BUFFER)
        file.seek(start)
        at = file.read(end - start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end = start
    return 0
