"""Results as plain text."""

from __future__ import annotations

from collections.abc import Sequence

from esurge_cli.results.lines import ReadOrigin
from esurge_cli.results.result import Result
from esurge_cli.rows.row import RowError

_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r"})


class TextLines:
    r"""The text of each sample on a line of its own: \\, \n and \r stand for a backslash and the ends of lines.

    The line of a row that failed is empty.
    """

    read_origin: ReadOrigin | None = None

    def of_results(self, results: Sequence[Result]) -> bytes:
        return b"".join(result.text.translate(_ESCAPES).encode() + b"\n" for result in results)

    def of_error(self, error: RowError) -> bytes:
        return b"\n"

    def num_lines(self, num_samples: int) -> int:
        return num_samples

    def renumbered(self, lines: bytes, index: int) -> bytes:
        return lines
