"""Rows through reader and writer, with nothing between: what they cost, and that memory stays flat.

    python tests/cli/scale.py 10000000 [FOLDER]

writes an input of so many short rows, reads it and writes a result for each, out of order within a window as an engine
would, puts the file in order, and goes on with it once more, which finds every row there. A line for each part.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from esurge_cli.options import OutputOptions
from esurge_cli.results.file_writer import Rules
from esurge_cli.results.fingerprint import Fingerprints
from esurge_cli.results.flat import FlatLines
from esurge_cli.results.result import KeptRow, Result, Status, Usage
from esurge_cli.results.target import Target
from esurge_cli.rows.fields import FieldNames
from esurge_cli.rows.files import Files
from esurge_cli.rows.row import Row, RowError
from esurge_cli.rows.selection import Selection
from esurge_cli.rows.source import Source
from esurge_cli.sampling import SamplingDefaults
from scheduler import FinishReason

_WINDOW = 512
"""Rows in flight."""

_EVERY = 8
"""One of so many of them ends in a step."""


def write_input(path: Path, num_rows: int) -> None:
    with path.open("wb", 1 << 20) as file:
        for i in range(num_rows):
            file.write(b'{"id": "q%d", "prompt": "What is %d and %d?", "max_tokens": 8}\n' % (i, i, i % 97))


def source_of(path: Path) -> Source:
    names = FieldNames()
    return Source(Files([str(path)], names, None, 1 << 24), names, Selection(0, None, None, 0))


def read(path: Path) -> int:
    return sum(1 for _ in source_of(path).rows(lambda text: None))


def write(path: Path, output: Path, resume: bool = False) -> int:
    """How many rows were made."""
    target = Target.of(OutputOptions(output=str(output), resume=resume))
    lines = FlatLines(str)
    rules = Rules(lines, {}, Fingerprints({}, SamplingDefaults({"temperature": 0})), lambda row: 1, resume=resume)
    writer = target.writer(rules, nullcontext)
    num_made = 0
    window: list[Row | RowError | KeptRow] = []
    for row in source_of(path).rows(lambda text: None):
        admitted = writer.admit(row)
        if admitted is None:
            continue
        window.append(admitted)
        if len(window) == _WINDOW:
            for done in window[::-_EVERY]:
                _finish(writer, lines, done)
            num_made += len(window[::-_EVERY])
            del window[::-_EVERY]
            writer.flush()
    for done in window:
        _finish(writer, lines, done)
    writer.close(is_complete=True)
    return num_made + len(window)


def _finish(writer: object, lines: FlatLines, row: Row | RowError | KeptRow) -> None:
    assert isinstance(row, Row)
    result = Result(row, 0, " It is a number.", FinishReason.STOP, None, Usage(8, 0, 5), [1, 2, 3, 4, 5], None)
    writer.write(row.index, lines.of_results([result]), Status.GOOD)  # type: ignore[attr-defined]


@contextmanager
def timed(part: str, num_rows: int) -> Iterator[None]:
    start = time.process_time()
    yield
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(
        f"{part:24} {num_rows / seconds:>12,.0f} rows/s of one core   {seconds:8.1f} s   peak {peak:,} MiB", flush=True
    )


def main(num_rows: int, folder: Path) -> None:
    path, output = folder / "in.jsonl", folder / "out.jsonl"
    write_input(path, num_rows)
    with timed("read", num_rows):
        assert read(path) == num_rows
    with timed("read, write, put in order", num_rows):
        assert write(path, output) == num_rows
    with timed("go on, all there", num_rows):
        assert write(path, output, resume=True) == 0
    with output.open("rb") as file:
        assert all(line.startswith(b'{"id":"q%d","index":%d,' % (i, i)) for i, line in enumerate(file))


if __name__ == "__main__":
    rows = int(sys.argv[1])
    if len(sys.argv) > 2:
        main(rows, Path(sys.argv[2]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            os.chdir(temporary)
            main(rows, Path(temporary))
