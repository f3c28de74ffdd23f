"""JSON objects, one a line."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from esurge_cli.rows.lines import too_long
from esurge_cli.rows.row import ErrorType, Record, RowFault
from esurge_cli.rows.surrogates import parse_with_surrogates

DEFAULT_MAX_LINE_BYTES = 16 << 20

_MAX_DEPTH = 128
"""Deeper values could be read but not all of them written again (orjson: 254 levels, and the output adds its own)."""

_MAYBE_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")


def read_jsonl(lines: Iterable[bytes | None], max_line_bytes: int = DEFAULT_MAX_LINE_BYTES) -> Iterator[Record]:
    r"""From what `read_lines` gives.

    A byte order mark (that of a file that was joined to others too), \r before the \n and blank lines are passed over.
    Bad lines become faults, never exceptions.
    """
    for number, line in enumerate(lines, start=1):
        if line is None:
            yield Record(number, too_long(max_line_bytes))
            continue
        text = line.removeprefix(codecs.BOM_UTF8).strip()
        if text:
            yield Record(number, parse_object(text))


def parse_object(text: bytes) -> dict[str, Any] | RowFault:
    """The JSON object that the text is, or what is wrong with it."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if _MAYBE_SURROGATE.search(text) is None:
            return RowFault(ErrorType.INVALID_JSON, f"not JSON: {error}")
        try:
            value = parse_with_surrogates(text)
        except (ValueError, RecursionError) as fault:
            return RowFault(ErrorType.INVALID_JSON, f"not JSON: {fault}")
    if not isinstance(value, dict):
        return RowFault(ErrorType.INVALID_ROW, f"not a JSON object but {_KINDS.get(type(value), 'a number')}")
    if text.count(b"{") + text.count(b"[") > _MAX_DEPTH and _is_deep(value):
        return RowFault(ErrorType.INVALID_ROW, f"nested deeper than {_MAX_DEPTH} levels")
    return value


def _is_deep(value: Any) -> bool:
    """Level by level, as recursion has its own limit."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [item for parent in level for item in _children(parent)]
        if not level:
            return False
    return True


def _children(value: dict[str, Any] | list[Any]) -> list[Any]:
    items = value.values() if isinstance(value, dict) else value
    return [item for item in items if isinstance(item, dict | list)]


_KINDS = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
