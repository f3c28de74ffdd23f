"""Files of every kind, as records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import cast

from esurge_cli.errors import RunFailed
from esurge_cli.rows.csv_table import read_csv
from esurge_cli.rows.fields import FieldNames
from esurge_cli.rows.inputs import STDIN, expand, is_address, local_path, open_input
from esurge_cli.rows.json_values import read_json
from esurge_cli.rows.jsonl import DEFAULT_MAX_LINE_BYTES, read_jsonl
from esurge_cli.rows.kinds import InputKind, is_head, kind_of_head, kind_of_name, suffix_of
from esurge_cli.rows.lines import read_lines
from esurge_cli.rows.openai import read_openai
from esurge_cli.rows.parquet import count_parquet, read_parquet
from esurge_cli.rows.row import Record
from esurge_cli.rows.stream import Stream, decompressed_stream, failure
from esurge_cli.rows.text_lines import read_text

_CHUNK = 1 << 20


class Files:
    """Files in order, each opened when its turn comes. `kind` None is each one's own.

    Raises UserError at once for a file that cannot be read.
    """

    def __init__(
        self,
        inputs: list[str],
        names: FieldNames,
        kind: InputKind | None = None,
        max_line_bytes: int = DEFAULT_MAX_LINE_BYTES,
    ) -> None:
        self._names = names
        self._asked_kind = kind
        self._max_line_bytes = max_line_bytes
        self._files = expand(inputs, self._is_wanted)
        self._first: Stream | None = None

    @property
    def kind(self) -> InputKind:
        """That of the first file, which is opened for it, and awaited where it is a pipe. Raises RunFailed."""
        if self._asked_kind is not None:
            return self._asked_kind
        self._first = self._first or _open(self._files[0])
        return self._kind_of(self._first)

    def records(self) -> Iterator[Record]:
        """Raises RunFailed where a file cannot be read to its end, UserError for one without the columns wanted."""
        for name in self._files:
            stream, self._first = self._first or _open(name), None
            with closing(stream):
                yield from self._read(stream)

    def count(self) -> int | None:
        """How many there are at most: lines of plain files, or what Parquet files say. None where it takes reading."""
        total = 0
        for name in self._files:
            count = self._count(name)
            if count is None:
                return None
            total += count
        return total

    def _is_wanted(self, name: str) -> bool:
        """Of a folder's files: those of the kind asked for, by their names, or of any that has a name."""
        kind = kind_of_name(name)
        asked = InputKind.JSONL if self._asked_kind is InputKind.OPENAI else self._asked_kind
        return kind is not None and asked in (None, kind)

    def _kind_of(self, stream: Stream) -> InputKind:
        if self._asked_kind is not None:
            return self._asked_kind
        named = kind_of_name(stream.name)
        is_sure = named in (InputKind.TEXT, InputKind.CSV, InputKind.PARQUET)
        return cast("InputKind", named) if is_sure else kind_of_head(stream.peek(is_head), named)

    def _read(self, stream: Stream) -> Iterator[Record]:
        names, max_bytes = self._names, self._max_line_bytes
        match self._kind_of(stream):
            case InputKind.JSONL:
                return read_jsonl(read_lines(stream, max_bytes), max_bytes)
            case InputKind.OPENAI:
                return read_openai(read_lines(stream, max_bytes), names.id, max_bytes)
            case InputKind.TEXT:
                return read_text(read_lines(stream, max_bytes), names.prompt or "prompt", max_bytes)
            case InputKind.CSV:
                delimiter = "\t" if suffix_of(stream.name) == ".tsv" else ","
                return read_csv(read_lines(stream, max_bytes), stream.name, delimiter, names, max_bytes)
            case InputKind.PARQUET:
                return read_parquet(stream, names)
            case _:
                return read_json(stream, max_bytes)

    def _count(self, name: str) -> int | None:
        if name == STDIN or is_address(name) or not local_path(name).is_file():
            return None
        try:
            with closing(_open(name)) as stream:
                kind = self._kind_of(stream)
                if kind is InputKind.PARQUET:
                    return count_parquet(stream)
                has_lines = kind in (InputKind.JSONL, InputKind.OPENAI, InputKind.TEXT)
                return _count_lines(stream) if has_lines and not stream.is_compressed else None
        except RunFailed:
            return None  # whoever reads the rows will say it


def _open(name: str) -> Stream:
    try:
        return decompressed_stream(name, open_input(name))
    except Exception as error:  # the OSError of a file that is gone by now, or what an address raises
        raise failure(name, error) from error


def _count_lines(stream: Stream) -> int:
    """Line ends, and a last line without one."""
    count, last = 0, b"\n"
    while chunk := stream.read1(_CHUNK):
        count += chunk.count(b"\n")
        last = chunk[-1:]
    return count + (last != b"\n")
