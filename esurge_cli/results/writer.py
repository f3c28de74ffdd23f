"""Where the lines of each row go: files that survive whatever happens, or a pipe."""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from collections.abc import Callable
from typing import BinaryIO, Protocol

from esurge_cli.errors import OutputClosed, RunFailed
from esurge_cli.results.result import KeptRow, Status
from esurge_cli.rows.row import Row, RowError

Paused = Callable[[], contextlib.AbstractContextManager[None]]


class Writer(Protocol):
    """Takes the lines of rows, in any order, each once."""

    @property
    def num_held(self) -> int:
        """Rows that wait for one before them."""

    @property
    def kept(self) -> Counter[Status]:
        """Rows of this run's input that were there already, by how they ended."""

    @property
    def num_changed(self) -> int:
        """Rows that were there already, but of a row or settings that have changed since."""

    @property
    def num_dropped(self) -> int:
        """Rows that were there already and, once it is closed, are no more: they are not in the input."""

    def admit(self, row: Row | RowError) -> Row | RowError | KeptRow | None:
        """Told of every row in the order of the input, before anything is done for it, from any one thread.

        The row comes back where it is to be generated and written; None where its lines are there already, a KeptRow
        where they are but have to be written in another place.
        """

    def write(self, index: int, lines: bytes, status: Status) -> None:
        """The lines of an admitted row: complete ones, or none where it is left out."""

    def flush(self) -> None:
        """Let go of what was written, so that others see it. Raises RunFailed where it cannot be written."""

    def close(self, is_complete: bool) -> None:
        """`is_complete` where every row of the input was admitted and written."""


class PipeWriter:
    """Standard output, or what is like it. In order, a row waits until all before it are out."""

    num_changed = num_dropped = 0

    def __init__(self, file: BinaryIO, ordered: bool = True, paused: Paused = contextlib.nullcontext) -> None:
        self._file = file
        self._ordered = ordered
        self._paused = paused
        self.kept: Counter[Status] = Counter()
        self._admitted: deque[int] = deque()
        self._held: dict[int, bytes] = {}
        self._ready: list[bytes] = []

    @property
    def num_held(self) -> int:
        return len(self._held)

    def admit(self, row: Row | RowError) -> Row | RowError:
        self._admitted.append(row.index)
        return row

    def write(self, index: int, lines: bytes, status: Status) -> None:
        if not self._ordered:
            self._ready.append(lines)
            return
        self._held[index] = lines
        while self._admitted and self._admitted[0] in self._held:
            self._ready.append(self._held.pop(self._admitted.popleft()))

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
