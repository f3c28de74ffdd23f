"""Results as nothing but their text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from esurge_cli.results.result import Result
from esurge_cli.rows.row import RowError

_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r"})


@dataclass(frozen=True, slots=True)
class TextLines:
    r"""One line a sample, so that line and sample can be told from each other's number.

    A backslash, newline or carriage return inside a text is written `\\`, `\n` or `\r`, which `text` undoes.
    """

    def of_results(self, results: Sequence[Result]) -> bytes:
        return b"".join(line_of(result.text) for result in results)

    def of_error(self, error: RowError) -> bytes:
        """An empty line: there is no place for the reason."""
        return b"\n"


def line_of(text: str) -> bytes:
    return text.translate(_ESCAPES).encode() + b"\n"
