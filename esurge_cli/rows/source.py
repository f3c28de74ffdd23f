"""Where the bytes of the input come from."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from esurge_cli.errors import RunFailed
from esurge_cli.rows.fields import FieldNames, read_rows
from esurge_cli.rows.jsonl import read_jsonl
from esurge_cli.rows.row import Record, Row, RowError
from runner.errors import UserError

STDIN = "-"
_CHUNK = 1 << 20


class Source:
    """The files of the input, in order; each is opened when its turn comes, and read line by line.

    Raises UserError at once for a file that cannot be read.
    """

    def __init__(self, inputs: list[str], names: FieldNames, limit: int | None = None) -> None:
        if not inputs:
            raise UserError("name the input: files, or - for standard input")
        if inputs.count(STDIN) > 1:
            raise UserError("standard input can be read only once")
        for name in inputs:
            _check(name)
        self._inputs = inputs
        self._names = names
        self._limit = limit

    def rows(self) -> Iterator[Row | RowError]:
        """Raises RunFailed where a file that could be opened cannot be read to its end."""
        return itertools.islice(read_rows(self._records(), self._names), self._limit)

    def count(self) -> int | None:
        """How many rows there are at most, by the ends of lines; None where that cannot be known ahead."""
        if any(name == STDIN or not Path(name).expanduser().is_file() for name in self._inputs):
            return None
        num_lines = sum(_count_lines(Path(name).expanduser()) for name in self._inputs)
        return num_lines if self._limit is None else min(num_lines, self._limit)

    def _records(self) -> Iterator[Record]:
        for name in self._inputs:
            try:
                with _open(name) as file:
                    yield from read_jsonl(file)
            except OSError as error:
                raise RunFailed(f"{name} cannot be read to its end: {error.strerror}") from error


def _open(name: str) -> BinaryIO:
    """Standard input gets a buffer of its own, which a thread may hold while the program ends."""
    if name == STDIN:
        return open(0, "rb", closefd=False)
    return Path(name).expanduser().open("rb")


def _check(name: str) -> None:
    path = Path(name).expanduser()
    if name == STDIN or path.is_fifo():
        return  # a pipe can be opened only once
    try:
        path.open("rb").close()
    except FileNotFoundError as error:
        raise UserError(f"{name} does not exist") from error
    except IsADirectoryError as error:
        raise UserError(f"{name} is a folder; name the files in it") from error
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error.strerror}") from error


def _count_lines(path: Path) -> int:
    """Line ends, and a last line without one."""
    count, last = 0, b"\n"
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            count += chunk.count(b"\n")
            last = chunk[-1:]
    return count + (last != b"\n")
