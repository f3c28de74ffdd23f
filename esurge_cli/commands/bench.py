"""`esurge bench`: throughput and latency on a workload, for every combination of engine flags, or beside peers."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from esurge_cli.flags import PATH, Flag, Kind, with_flags
from esurge_cli.options import COUNT, TOKENS, EngineOptions, SamplingFlags, choice

if TYPE_CHECKING:
    from esurge_cli.bench.measure import Measurement
    from esurge_cli.display import Display
    from esurge_cli.engine import Engine
    from esurge_cli.prepare import Outcome


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    """Of what is measured."""

    num_prompts: Annotated[
        int, Flag("Rows; of a file, the first so many.", COUNT, shown_default="64, or the file's")
    ] = 0
    input_len: Annotated[int, Flag("Tokens of a random prompt, half as many to half as many again.", TOKENS)] = 256
    output_len: Annotated[int, Flag("Tokens to generate of it, likewise.", TOKENS)] = 128
    compare: Annotated[
        list[str],
        Flag(
            "Command of another engine on the same INPUT, to run in turns with esurge generate. May be repeated. Its "
            'last line of output may be {"engine": NAME, "start_s": X, "output_tokens_per_s": X}.',
            Kind("COMMAND"),
        ),
    ] = field(default_factory=list)
    rounds: Annotated[int | None, Flag("Runs of each command, with --compare.", COUNT, shown_default="5")] = None
    json: Annotated[Path | None, Flag("File for the measurements as JSON.", PATH)] = None
    progress: Annotated[str, Flag("How progress is shown on stderr.", choice("auto", "rich", "plain", "none"))] = "auto"


_NUM_RANDOM = 64
_ROUNDS = 5


@with_flags
def bench(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(metavar="INPUT", show_default=False, help="JSONL files, as generate reads them."),
    ] = None,
    *,
    workload: WorkloadOptions,
    sampling: SamplingFlags,
    engine: list[EngineOptions],
) -> None:
    """Measure throughput and latency.

    Any engine flag takes a list with commas (--max-batched-tokens 256,1024; a switch is given both ways): each
    combination is measured, and is a line of the table. Loading and compiling are not part of what is measured. The
    share of peak is of what XLA's own matrix product reached right afterwards; native ones may be above it.

    With --compare, whole commands are measured instead, each in a new process, loading and all: esurge generate with
    the flags given here, and those of the peers.
    """
    if workload.compare:
        Comparison(inputs or [], workload, sampling, engine).run()
    else:
        Benchmark(inputs or [], workload, sampling, engine).run()


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One run of the command."""

    inputs: list[str]
    workload: WorkloadOptions
    sampling: SamplingFlags
    points: list[EngineOptions]

    def run(self) -> None:
        from esurge_cli.bench.report import table, write_json
        from esurge_cli.bench.sweep import swept_fields
        from esurge_cli.display import make_display, results_console
        from esurge_cli.engine import check_options
        from runner.errors import UserError

        if self.workload.rounds is not None:
            raise UserError("--rounds goes with --compare")
        for point in self.points:
            check_options(point)
        with closing(make_display(self.workload.progress)) as display:
            results = self._measure_all(display)
        results_console().print(table(swept_fields(self.points), results))
        if self.workload.json is not None:
            write_json(self.workload.json, results)

    def _measure_all(self, display: Display) -> list[tuple[dict[str, Any], Measurement]]:
        """In the order of the points."""
        from esurge_cli.bench.measure import measure
        from esurge_cli.bench.sweep import by_engine, swept_fields
        from esurge_cli.engine import load_engine

        measured: dict[EngineOptions, Measurement] = {}
        swept = swept_fields(self.points)
        for options, points in by_engine(self.points):
            engine = load_engine(options, display)
            rows = self._rows(engine, options)
            for point in points:
                display.header([*engine.describe(options), *(f"{name} {getattr(point, name)}" for name in swept)])
                measured[point] = measure(engine, point, rows, display.update)
        return [(asdict(point), measured[point]) for point in self.points]

    def _rows(self, engine: Engine, options: EngineOptions) -> list[Outcome]:
        from esurge_cli.bench.workload import random_rows, rows_of_files

        workload = self.workload
        if self.inputs:
            return rows_of_files(self.inputs, engine, self.sampling, options.seed, workload.num_prompts or None)
        return random_rows(
            workload.num_prompts or _NUM_RANDOM,
            workload.input_len,
            workload.output_len,
            engine.runner.config.vocab_size,
            options.seed,
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """One run of the command with --compare."""

    inputs: list[str]
    workload: WorkloadOptions
    sampling: SamplingFlags
    points: list[EngineOptions]

    def run(self) -> None:
        """Ends with status 1 if a command has failed, once the others are shown."""
        from tempfile import TemporaryDirectory

        from esurge_cli.bench.compare import compare, ours, peer, results_of, table
        from esurge_cli.bench.report import write_values
        from esurge_cli.display import make_display, results_console
        from esurge_cli.engine import check_options

        self._check()
        (engine,) = self.points
        check_options(engine)
        peers = [peer(command) for command in self.workload.compare]
        limit = self.workload.num_prompts or None
        with TemporaryDirectory() as folder, closing(make_display(self.workload.progress)) as display:
            contenders = [ours(self.inputs, limit, engine, self.sampling, Path(folder)), *peers]
            compare(contenders, self.workload.rounds or _ROUNDS, display, display.note)
        results = results_of(contenders)
        results_console().print(table(results))
        if self.workload.json is not None:
            write_values(self.workload.json, {"options": asdict(engine), "commands": results})
        if any(result.failure is not None for result in results):
            raise typer.Exit(1)

    def _check(self) -> None:
        from esurge_cli.rows.inputs import STDIN
        from runner.errors import UserError

        if not self.inputs or STDIN in self.inputs:
            raise UserError("--compare needs files as INPUT: each command reads them anew")
        if len(self.points) > 1:
            raise UserError("--compare takes one value of each flag of the engine")
        if self.workload.rounds == 0:
            raise UserError("--rounds must be at least 1")
