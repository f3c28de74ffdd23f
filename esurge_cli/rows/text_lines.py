"""Plain text, a prompt a line."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator

from esurge_cli.rows.lines import too_long
from esurge_cli.rows.row import ErrorType, Record, RowFault


def read_text(lines: Iterable[bytes | None], field: str, max_line_bytes: int) -> Iterator[Record]:
    r"""From what `read_lines` gives; the line is the row's one field, with its spaces.

    A byte order mark, \r at the end and blank lines are passed over. What isn't UTF-8 is a fault.
    """
    for number, line in enumerate(lines, start=1):
        if line is None:
            yield Record(number, too_long(max_line_bytes))
            continue
        text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        if text.strip():
            yield Record(number, _fields(text.removesuffix(b"\r"), field))


def _fields(text: bytes, field: str) -> dict[str, object] | RowFault:
    try:
        return {field: text.decode()}
    except UnicodeDecodeError as error:
        return not_utf8(error)


def not_utf8(error: UnicodeDecodeError) -> RowFault:
    """What becomes of such a line."""
    return RowFault(ErrorType.INVALID_ROW, f"not UTF-8: {error.reason} at byte {error.start}")
