"""Which kind of input it is: by its name, or else by how it begins."""

from __future__ import annotations

import codecs
import re
from enum import StrEnum
from pathlib import PurePosixPath

import orjson

from esurge_cli.rows.compression import SUFFIXES


class InputKind(StrEnum):
    """As `--input-format` calls them; datasets have a flag of their own."""

    JSONL = "jsonl"
    OPENAI = "openai"
    TEXT = "text"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"
    DATASET = "dataset"


_BY_SUFFIX = {
    ".jsonl": InputKind.JSONL,
    ".ndjson": InputKind.JSONL,
    ".json": InputKind.JSON,
    ".csv": InputKind.CSV,
    ".tsv": InputKind.CSV,
    ".txt": InputKind.TEXT,
    ".parquet": InputKind.PARQUET,
}

_MAX_HEAD = 1 << 20


def suffix_of(name: str) -> str:
    """In small letters, that of a compression left out: "A.CSV.gz" → ".csv"."""
    path = PurePosixPath(name.lower())
    return (path.with_suffix("") if path.suffix in SUFFIXES else path).suffix


def kind_of_name(name: str) -> InputKind | None:
    """What the name promises; a file of either kind of JSON is to be looked into."""
    return _BY_SUFFIX.get(suffix_of(name))


def is_head(data: bytes) -> bool:
    """Whether this much of an input is enough for `kind_of_head`: a line that is not blank, or a megabyte."""
    return b"\n" in _begin(data) or len(data) >= _MAX_HEAD


def kind_of_head(head: bytes, named: InputKind | None) -> InputKind:
    """The kind of an input that begins so, where its name promises JSON or nothing.

    A first line that is a whole object, or has no end in sight, makes it JSON lines; an object over several lines or
    an array of objects is JSON. What begins otherwise is what its name says, or text.
    """
    if named not in (None, InputKind.JSONL, InputKind.JSON):
        return named
    begin = _begin(head)
    if begin.startswith(b"PAR1") and named is None:
        return InputKind.PARQUET
    first, end, _ = begin.partition(b"\n")
    if first.startswith(b"{") and (not end or _is_line(first, named)):
        return InputKind.OPENAI if _is_request(first) else InputKind.JSONL
    if named is None:
        return InputKind.JSON if re.match(rb"\{|\[\s*[{\]]", begin) else InputKind.TEXT
    return named


def _is_line(first: bytes, named: InputKind | None) -> bool:
    """Whether the line, which begins an object, is meant to end it too, be it broken."""
    if _object(first) is not None or named is InputKind.JSONL:
        return True
    return named is None and not first.rstrip().endswith((b"{", b"[", b","))


def _begin(data: bytes) -> bytes:
    return data.removeprefix(codecs.BOM_UTF8).lstrip()


def _object(line: bytes) -> dict[str, object] | None:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _is_request(line: bytes) -> bool:
    """Whether it is a line of OpenAI's batch files. One whose end is not in sight is told by its first key."""
    fields = _object(line)
    if fields is None:
        return re.match(rb'\{\s*"custom_id"\s*:', line) is not None
    return "custom_id" in fields and "body" in fields
