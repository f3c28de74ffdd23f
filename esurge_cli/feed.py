"""Rows are read and tokenized beside the engine, never far ahead of it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from esurge_cli.prepare import Outcome
from esurge_cli.results.result import KeptRow
from esurge_cli.rows.row import Row, RowError

_MAX_READ = 256
_MAX_PREPARED = 64
_BATCH = 32


class Feed(Protocol):
    """Rows in the order of the input."""

    def take(self, timeout: float) -> Outcome | None:
        """The next row; None where none has come within `timeout` seconds, or none is left."""

    @property
    def is_exhausted(self) -> bool:
        """Whether all rows were taken."""

    @property
    def error(self) -> BaseException | None:
        """Why there are no more, where it is not that all were read."""


class ListFeed:
    """Rows that are all there."""

    error = None

    def __init__(self, rows: Iterable[Outcome]) -> None:
        self._rows = list(rows)[::-1]

    def take(self, timeout: float) -> Outcome | None:
        return self._rows.pop() if self._rows else None

    @property
    def is_exhausted(self) -> bool:
        return not self._rows


_Read = Row | RowError | KeptRow


class ThreadedFeed:
    """One thread reads rows and one prepares what it finds read, so that a slow input holds up no row that is here.

    What a thread raises is kept in `error`, after the rows before it. The threads are daemons: a read that never
    returns must not keep the program from ending.
    """

    def __init__(self, rows: Iterator[_Read], prepare: Callable[[list[_Read]], list[Outcome]]) -> None:
        self._read: queue.Queue[_Read | None] = queue.Queue(_MAX_READ)
        self._prepared: queue.Queue[Outcome | None] = queue.Queue(_MAX_PREPARED)
        self._rows = rows
        self._prepare = prepare
        self.error: BaseException | None = None
        self._closed = False
        self.is_exhausted = False
        for work in (self._read_all, self._prepare_all):
            threading.Thread(target=work, name=f"esurge-feed{work.__name__}", daemon=True).start()

    def take(self, timeout: float) -> Outcome | None:
        if self.is_exhausted:
            return None
        try:
            outcome = self._prepared.get(timeout > 0, timeout)
        except queue.Empty:
            return None
        if outcome is None:
            self.is_exhausted = True
        return outcome

    def close(self) -> None:
        """Take no more rows; the threads end once what they wait for has come."""
        self._closed = self.is_exhausted = True
        for full in (self._read, self._prepared):
            while not full.empty():
                full.get_nowait()

    def _read_all(self) -> None:
        try:
            for row in self._rows:
                self._read.put(row)
                if self._closed:
                    return
        except BaseException as error:
            self.error = error
        self._read.put(None)

    def _prepare_all(self) -> None:
        try:
            while (rows := self._rows_that_are_read()) and not self._closed:
                for outcome in self._prepare(rows):
                    self._prepared.put(outcome)
                    if self._closed:
                        return
        except BaseException as error:
            self.error = error
        self._prepared.put(None)

    def _rows_that_are_read(self) -> list[_Read]:
        """At least one, unless the input is at its end."""
        rows: list[_Read] = []
        while len(rows) < _BATCH:
            row = self._read.get() if not rows else self._next_read()
            if row is None:
                break
            rows.append(row)
        return rows

    def _next_read(self) -> _Read | None:
        try:
            row = self._read.get_nowait()
        except queue.Empty:
            return None
        if row is None:
            self._read.put(None)  # the end is to be met again
        return row
