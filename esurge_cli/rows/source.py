"""From the input to the rows that are taken of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from esurge_cli.rows.fields import FieldNames, read_rows
from esurge_cli.rows.kinds import InputKind
from esurge_cli.rows.row import Record, Row, RowError
from esurge_cli.rows.selection import Selection, watch_ids


class Origin(Protocol):
    """Where records come from: Files or a HubDataset."""

    @property
    def kind(self) -> InputKind: ...

    def records(self) -> Iterator[Record]: ...

    def count(self) -> int | None: ...


class Source:
    """The rows of the input."""

    def __init__(self, origin: Origin, names: FieldNames, selection: Selection = Selection()) -> None:  # noqa: B008
        self._origin = origin
        self._names = names
        self._selection = selection

    @property
    def kind(self) -> InputKind:
        """What kind of input it is; of several files the first one's. Waits for the first line of a pipe."""
        return self._origin.kind

    def rows(self, warn: Callable[[str], None] | None = None) -> Iterator[Row | RowError]:
        """`warn` is told, once, of an id that is given twice.

        Raises RunFailed where what could be opened cannot be read to its end, UserError for columns that are not there.
        """
        rows = self._selection.of(read_rows(self._origin.records(), self._names))
        return rows if warn is None else watch_ids(rows, warn)

    def count(self) -> int | None:
        """How many rows there are at most; None where that cannot be known without reading them."""
        count = self._origin.count()
        return None if count is None else self._selection.count(count)
