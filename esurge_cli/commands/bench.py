"""`esurge bench`: throughput and latency on a workload, for every combination of engine flags."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from esurge_cli.flags import PATH, Flag, with_flags
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
    json: Annotated[Path | None, Flag("File for the measurements as JSON.", PATH)] = None
    progress: Annotated[str, Flag("How progress is shown on stderr.", choice("auto", "rich", "plain", "none"))] = "auto"


_NUM_RANDOM = 64


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
    combination is measured, and is a line of the table. Loading and compiling are not part of what is measured.
    """
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
