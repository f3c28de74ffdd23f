"""CSV and TSV: a header, then a row a record, whose quoted cells may hold line ends."""

from __future__ import annotations

import codecs
import contextlib
import csv
from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from esurge_cli.rows.columns import check_columns
from esurge_cli.rows.fields import FieldNames
from esurge_cli.rows.lines import too_long
from esurge_cli.rows.row import ErrorType, Record, RowFault
from esurge_cli.rows.text_lines import not_utf8
from esurge_cli.sampling import PARAMETERS
from runner.errors import UserError


def read_csv(
    lines: Iterable[bytes | None], name: str, delimiter: str, names: FieldNames, max_bytes: int
) -> Iterator[Record]:
    """From what `read_lines` gives. Raises UserError for a header without the columns that the fields need.

    Cells are text; those of sampling parameters and messages are read as JSON where they can be, and an empty one of
    these, or of the id, is none. A record that is longer than `max_bytes` is a fault, as is one with too many cells.
    """
    records = _read_records(_Lines(lines, max_bytes), delimiter)
    _, header = next(records, (0, None))
    if header is None:
        return
    if isinstance(header, RowFault):
        raise UserError(f"{name} has no header that can be read: {header}")
    check_columns(name, header, names)
    for line, cells in records:
        if isinstance(cells, RowFault):
            yield Record(line, cells)
        elif len(cells) == len(header):
            fields = {column: _value(column, cell, names) for column, cell in zip(header, cells, strict=True)}
            yield Record(line, fields)
        elif len(cells) > 1 or not cells[0].isspace():
            message = f"{len(cells)} cells, but the header has {len(header)}"
            yield Record(line, RowFault(ErrorType.INVALID_ROW, message))


def _read_records(lines: _Lines, delimiter: str) -> Iterator[tuple[int, list[str] | RowFault]]:
    """The cells, with the line on which the record begins; blank lines are passed over."""
    csv.field_size_limit(max(csv.field_size_limit(), lines.max_bytes))
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        lines.begin_record()
        try:
            cells = next(reader)
        except StopIteration:
            return
        except RowFault as fault:
            yield lines.first, fault
        except csv.Error as error:
            yield lines.first, RowFault(ErrorType.INVALID_ROW, f"not CSV: {error}")
        else:
            if cells:
                yield lines.first, cells


class _Lines:
    """Text for csv.reader, which goes on after what is raised to it here. `first` is the line of the record."""

    def __init__(self, lines: Iterable[bytes | None], max_bytes: int) -> None:
        self._lines = iter(lines)
        self.max_bytes = max_bytes
        self._number = 0
        self.begin_record()

    def begin_record(self) -> None:
        self.first = self._number + 1
        self._size = 0
        self._num_quotes = 0

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        """Raises RowFault for a record that is too long, at its end, and for a line that isn't UTF-8."""
        line = self._take()
        if line is None or self._size > self.max_bytes:
            with contextlib.suppress(StopIteration):  # the file may end before the record does
                while self._num_quotes % 2:
                    self._take()
            raise too_long(self.max_bytes)
        try:
            text = (line.removeprefix(codecs.BOM_UTF8) if self._number == 1 else line).decode()
        except UnicodeDecodeError as error:
            raise not_utf8(error) from error
        return text + "\n"

    def _take(self) -> bytes | None:
        """The quotation marks of a line that is too long are not known, and taken for pairs."""
        line = next(self._lines)
        self._number += 1
        if line is not None:
            self._size += len(line)
            self._num_quotes += line.count(b'"')
        return line


def _value(column: str, cell: str, names: FieldNames) -> Any:
    is_list = column in ("stop", names.messages or "messages")
    is_typed = is_list or column in PARAMETERS
    if not cell and (is_typed or column == names.id):
        return None
    if not is_typed or (is_list and not cell.lstrip().startswith("[")):
        return cell
    try:
        return orjson.loads(cell)
    except orjson.JSONDecodeError:
        return cell
