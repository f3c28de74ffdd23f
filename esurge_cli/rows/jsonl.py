"""JSON objects, one a line."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator

import orjson

from esurge_cli.rows.row import ErrorType, Record, RowFault


def read_jsonl(lines: Iterable[bytes]) -> Iterator[Record]:
    r"""Lines as a binary file gives them: ended by \n alone, for other line separators may stand inside strings.

    A byte order mark, \r before the \n and blank lines are passed over. Bad lines become faults, never exceptions.
    """
    for number, line in enumerate(lines, start=1):
        text = line.removeprefix(codecs.BOM_UTF8).strip() if number == 1 else line.strip()
        if text:
            yield Record(number, _parse(text))


def _parse(text: bytes) -> dict[str, object] | RowFault:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return RowFault(ErrorType.INVALID_JSON, f"not JSON: {error}")
    if not isinstance(value, dict):
        return RowFault(ErrorType.INVALID_ROW, f"not a JSON object but {_KINDS.get(type(value), 'a number')}")
    return value


_KINDS = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
