"""What every output kind made of lines offers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from esurge_cli.results.result import Result
from esurge_cli.rows.row import RowError


class Lines(Protocol):
    """From what came of a row to its bytes: whole lines, each with the newline that ends it."""

    def of_results(self, results: Sequence[Result]) -> bytes:
        """All samples of one row, in their order."""

    def of_error(self, error: RowError) -> bytes:
        """A row that failed: one line."""
