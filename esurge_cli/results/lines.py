"""What a format of lines has to say: results as bytes, and from such bytes whose they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from esurge_cli.results.result import Result, Status
from esurge_cli.rows.row import RowError


class Origin(NamedTuple):
    """What a line tells: the index of its row, and its id."""

    row: int
    id: str | int | None
    status: Status


ReadOrigin = Callable[[bytes], Origin]
"""Raises ValueError for a line that is no result."""


class Lines(Protocol):
    """A row's results as lines, each ended by a newline. Equal results give equal bytes."""

    @property
    def read_origin(self) -> ReadOrigin | None:
        """None where a line does not tell whose it is."""

    def of_results(self, results: Sequence[Result]) -> bytes:
        """All samples of one row."""

    def of_error(self, error: RowError) -> bytes:
        """The one line of a row that failed."""

    def num_lines(self, num_samples: int) -> int:
        """How many lines `of_results` makes of them."""

    def renumbered(self, lines: bytes, index: int) -> bytes:
        """A row's lines as they are where the row has this index."""
