"""Whole commands on one workload, ours and those of other engines, in turns: what changes meanwhile changes for all."""

from __future__ import annotations

import inspect
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import orjson

from esurge_cli.bench.measure import rss_bytes
from esurge_cli.config_file import variable_of
from esurge_cli.flags import arguments_of
from esurge_cli.sizes import show_bytes
from runner.errors import UserError
from runner.progress import Progress

if TYPE_CHECKING:
    from rich.table import Table

    from esurge_cli.options import EngineOptions, SamplingFlags

_TAIL_BYTES = 1 << 16
_COLUMNS = ("", "seconds", "start", "output tok/s", "peak memory", "seconds, ours : its", "tok/s, ours : its")


@dataclass(frozen=True, slots=True)
class Report:
    """What a command tells of itself, None where it does not; `start_seconds` are those before the first step."""

    engine: str | None = None
    start_seconds: float | None = None
    output_tokens_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a command. `seconds` are from outside, from its start to its end.

    `peak_rss_bytes` are of the largest of its processes, and at least what this one has, which it came from.
    """

    seconds: float
    peak_rss_bytes: int
    start_seconds: float | None
    output_tokens_per_second: float | None


@dataclass(slots=True)
class Contender:
    """A command with its runs so far; one that has failed, for the reason `failure`, does not run again.

    `report` finds what it tells, given the last line of its standard output.
    """

    name: str
    command: list[str]
    report: Callable[[str], Report]
    environment: Mapping[str, str] | None = None
    runs: list[Run] = field(default_factory=list)
    failure: str | None = None

    def run(self) -> None:
        with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
            start = time.perf_counter()
            try:
                status, peak_rss = _run_to_end(self.command, self.environment, stdout, stderr)
            except OSError as error:
                self.failure = f"{self.name} cannot be run: {error.strerror}"
                return
            seconds = time.perf_counter() - start
            if status:
                self.failure = ": ".join(filter(None, [f"{self.name} {_ending(status)}", _last_line(stderr)]))
                return
            report = self.report(_last_line(stdout))
        self.name = report.engine or self.name
        self.runs.append(Run(seconds, peak_rss, report.start_seconds, report.output_tokens_per_second))


@dataclass(frozen=True, slots=True)
class Spread:
    """Of a number over the rounds."""

    median: float
    min: float
    max: float

    @staticmethod
    def of(values: Sequence[float | None]) -> Spread | None:
        """None where there are no values."""
        known = [value for value in values if value is not None]
        return Spread(statistics.median(known), min(known), max(known)) if known else None


@dataclass(frozen=True, slots=True)
class Result:
    """A command's rounds in short. The ratios are ours over its own in the same round."""

    name: str
    command: list[str]
    failure: str | None
    runs: list[Run]
    seconds: Spread | None
    start_seconds: Spread | None
    output_tokens_per_second: Spread | None
    peak_rss_bytes: Spread | None
    seconds_ratio: Spread | None
    output_tokens_per_second_ratio: Spread | None


def peer(text: str) -> Contender:
    """A command as it would stand in a shell, which it is run without. Raises UserError if it is none."""
    try:
        command = shlex.split(text)
    except ValueError as error:
        raise UserError(f"--compare {text}: {error}") from error
    if not command:
        raise UserError("--compare needs a command")
    if shutil.which(command[0]) is None:
        raise UserError(f"--compare {text}: there is no program {command[0]}")
    return Contender(text, command, report_of_line)


def ours(
    inputs: Sequence[str], limit: int | None, engine: EngineOptions, sampling: SamplingFlags, folder: Path
) -> Contender:
    """The whole `esurge generate`, which writes to `folder`, by the program that runs now."""
    from esurge_cli.commands.generate import generate

    summary = folder / "summary.json"
    flags = [*arguments_of(engine), *arguments_of(sampling), "--progress=none", "--overwrite"]
    if limit is not None:
        flags.append(f"--limit={limit}")
    files = [f"--output={folder / 'out.jsonl'}", f"--summary={summary}"]
    variables = {variable_of(flag) for flag in inspect.signature(generate).parameters}
    return Contender(
        "esurge generate",
        [*_this_program(), "generate", *flags, *files, "--", *inputs],
        lambda line: _report_of_summary(summary),
        {name: value for name, value in os.environ.items() if name not in variables},
    )


def compare(contenders: Sequence[Contender], rounds: int, progress: Progress, note: Callable[[str], None]) -> None:
    """Run all, in turns, until the rounds are over or the first, which is ours, fails. Failures are noted at once."""
    turns = [contender for _ in range(rounds) for contender in contenders]
    with _ended_by_sigterm():
        for done, contender in enumerate(turns):
            progress("Comparing", done, len(turns))
            if contenders[0].failure is None and contender.failure is None:
                contender.run()
                if contender.failure is not None:
                    note(contender.failure)
    progress("Comparing", len(turns), len(turns))


def results_of(contenders: Sequence[Contender]) -> list[Result]:
    """In their order, the first of which is ours."""
    return [_result(contender, contenders[0]) for contender in contenders]


def table(results: Sequence[Result]) -> Table:
    """A row for each command: medians, with the least and the most beside them."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    shown = Table(*_COLUMNS, box=box.SIMPLE_HEAD)
    for column in shown.columns[1:]:
        column.justify = "right"
    for result in results:
        shown.add_row(
            Text(result.name),
            _cell(result.seconds, "{:,.2f}".format),
            _cell(result.start_seconds, "{:,.2f}".format),
            _cell(result.output_tokens_per_second, "{:,.1f}".format),
            _cell(result.peak_rss_bytes, show_bytes),
            _cell(result.seconds_ratio, "{:.3f}".format),
            _cell(result.output_tokens_per_second_ratio, "{:.3f}".format),
        )
    return shown


def report_of_line(line: str) -> Report:
    """Of a peer's last line of output, if that is a JSON object; what it lacks, or is no number, is not known."""
    try:
        values = orjson.loads(line)
    except orjson.JSONDecodeError:
        return Report()
    if not isinstance(values, dict):
        return Report()
    engine = values.get("engine")
    return Report(
        engine if isinstance(engine, str) else None,
        _number(values.get("start_s")),
        _number(values.get("output_tokens_per_s")),
    )


def _report_of_summary(path: Path) -> Report:
    values = orjson.loads(path.read_bytes())
    return Report(None, values["seconds"]["load"], values["output_tokens_per_second"])


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _result(contender: Contender, first: Contender) -> Result:
    runs = contender.runs
    # whoever fails runs no more, so that runs of one place are of one round
    pairs = [] if contender is first else list(zip(first.runs, runs, strict=False))
    return Result(
        contender.name,
        contender.command,
        contender.failure,
        runs,
        Spread.of([run.seconds for run in runs]),
        Spread.of([run.start_seconds for run in runs]),
        Spread.of([run.output_tokens_per_second for run in runs]),
        Spread.of([run.peak_rss_bytes for run in runs]),
        Spread.of([our.seconds / its.seconds for our, its in pairs]),
        Spread.of([_ratio(our.output_tokens_per_second, its.output_tokens_per_second) for our, its in pairs]),
    )


def _ratio(our: float | None, its: float | None) -> float | None:
    return None if our is None or not its else our / its


def _cell(spread: Spread | None, show: Callable[[float], str]) -> str:
    return "-" if spread is None else f"{show(spread.median)} ({show(spread.min)} … {show(spread.max)})"


def _this_program() -> list[str]:
    """The command that runs now up to its arguments, the interpreter and its own options included."""
    return [sys.executable, *sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]]


def _run_to_end(
    command: list[str], environment: Mapping[str, str] | None, stdout: IO[bytes], stderr: IO[bytes]
) -> tuple[int, int]:
    """The exit status, negative for a signal, and the peak memory. Raises OSError if it cannot be started.

    It has a process group of its own, of which nothing is left afterwards, whatever ends the wait.
    """
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, process_group=0
    ) as process:
        try:
            _, status, usage = os.wait4(process.pid, 0)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(status), rss_bytes(usage)


def _ending(status: int) -> str:
    return f"ended with status {status}" if status > 0 else f"was ended by {signal.Signals(-status).name}"


def _last_line(file: IO[bytes]) -> str:
    """That holds anything; "" where there is none."""
    file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
    lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "")


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM as an exception, like Ctrl-C, so that no command outlives this one."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
