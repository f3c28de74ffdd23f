"""Runs that write files without an engine, and may be made to crash at any of their effects on the disk."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from esurge_cli.options import OutputOptions
from esurge_cli.results import disk
from esurge_cli.results.file_writer import FileWriter, Rules
from esurge_cli.results.fingerprint import Fingerprints
from esurge_cli.results.flat import FlatLines
from esurge_cli.results.lines import Lines
from esurge_cli.results.result import KeptRow, Status
from esurge_cli.results.shards import ShardWriter
from esurge_cli.results.target import Format, Target
from esurge_cli.results.text import TextLines
from esurge_cli.results.writer import Writer
from esurge_cli.rows.row import Row
from esurge_cli.sampling import SamplingDefaults

PATIENCE = 7
"""Rows in flight."""


class Crash(BaseException):
    """The process is no more."""


def rows(*texts: str, ids: bool = True, n: int = 1) -> list[Row]:
    """Rows whose lines say their text."""
    sampling = {"n": n} if n > 1 else {}
    return [
        Row(i, i + 1, f"q{i}" if ids else None, text, sampling, {"prompt": text} | sampling)
        for i, text in enumerate(texts)
    ]


def lines_of(row: Row) -> bytes:
    """What a run is to write of a row."""
    reason = {"!": "error", "-": "length"}.get(str(row.prompt)[:1], "stop")
    return b"".join(
        orjson.dumps(
            {"id": row.id, "index": row.index, "sample": sample, "text": row.prompt, "finish_reason": reason},
            option=orjson.OPT_APPEND_NEWLINE,
        )
        for sample in range(1 if reason == "error" else row.sampling.get("n", 1))
    )


def status_of(row: Row) -> Status:
    return {"!": Status.FAILED, "-": Status.CUT}.get(str(row.prompt)[:1], Status.GOOD)


@dataclass
class Job:
    """A run of `rows` into `output`, several of which are in flight at a time and finish in random order."""

    output: Path | str
    rows: Sequence[Row]
    flags: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    temperature: float = 0.0
    stop_after: int | None = None
    seed: int = 0
    is_part: bool = False
    made: list[int] = field(default_factory=list)

    def run(self, **flags: Any) -> Writer:
        """`made` has the indices of the rows that were not there already."""
        target = Target.of(OutputOptions(output=str(self.output), **self.flags, **flags))
        writer = target.writer(self._rules(target, flags), nullcontext)
        self.made = []
        try:
            writer.close(is_complete=self._write(writer))
        except Crash:
            let_go(writer)
            raise
        return writer

    def _rules(self, target: Target, flags: dict[str, Any]) -> Rules:
        lines: Lines = TextLines() if target.format is Format.TEXT else FlatLines(str)
        fingerprints = Fingerprints(self.settings, SamplingDefaults({"temperature": self.temperature}))
        return Rules(
            lines,
            self.settings,
            fingerprints,
            num_lines=lambda row: row.sampling.get("n", 1) if isinstance(row, Row) else 1,
            ordered=not self.flags.get("unordered", False),
            overwrite=target.overwrite,
            resume=target.resume,
            retry=flags.get("retry", frozenset()),
            is_part=self.is_part,
        )

    def _write(self, writer: Writer) -> bool:
        chance = random.Random(self.seed)
        waiting = iter(self.rows)
        in_flight: list[Row | KeptRow] = []
        while True:
            while len(in_flight) < PATIENCE and (row := next(waiting, None)) is not None:
                admitted = writer.admit(row)
                if admitted is not None:
                    in_flight.append(admitted)  # type: ignore[arg-type]
            if not in_flight:
                return True
            if self.stop_after is not None and len(self.made) >= self.stop_after:
                return False
            for _ in range(chance.randint(1, 3)):
                if in_flight:
                    self._finish(writer, in_flight.pop(chance.randrange(len(in_flight))))
            writer.flush()

    def _finish(self, writer: Writer, row: Row | KeptRow) -> None:
        if isinstance(row, KeptRow):
            writer.write(row.index, row.lines, row.status)
            return
        self.made.append(row.index)
        lines = b"".join(b"%s\n" % str(row.prompt).encode() for _ in lines_of(row).splitlines())
        is_text = str(self.output).endswith(".txt")
        writer.write(row.index, lines if is_text else lines_of(row), status_of(row))


def let_go(writer: Writer) -> None:
    """What the end of a process does: files are closed, and so are no longer locked."""
    if isinstance(writer, ShardWriter):
        for shard in writer._shards.values():
            shard._spool.close()
        with suppress(OSError):  # it was about to end anyhow
            os.close(writer._lock)
    elif isinstance(writer, FileWriter):
        writer._spool.close()


@contextmanager
def crash_at(monkeypatch: Any, effect: int, torn: bool = False) -> Iterator[list[str]]:
    """Let the process end before its `effect`-th effect on the disk, or (`torn`) when half of a write is done.

    The list gets the names of the effects there were.
    """
    effects: list[str] = []
    with monkeypatch.context() as patch:
        for name in ("write", "truncate", "sync", "replace", "remove"):
            patch.setattr(disk, name, _Counted(name, getattr(disk, name), effects, effect, torn))
        yield effects


@dataclass
class _Counted:
    name: str
    do: Any
    effects: list[str]
    last: int
    torn: bool

    def __call__(self, *arguments: Any) -> None:
        if len(self.effects) >= self.last:
            if self.torn and self.name == "write" and len(self.effects) == self.last:
                self.do(arguments[0], arguments[1][: len(arguments[1]) // 2])
            raise Crash
        self.effects.append(self.name)
        self.do(*arguments)
