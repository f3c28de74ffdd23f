"""Measurements as a table for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from esurge_cli.bench.measure import Measurement
from esurge_cli.errors import RunFailed
from esurge_cli.sizes import show_bytes

if TYPE_CHECKING:
    from rich.table import Table

_COLUMNS = (
    "output tok/s",
    "total tok/s",
    "seconds",
    "TTFT ms p50 / p99",
    "ITL ms p50 / p99",
    "step ms p50",
    "host",
    "cached",
    "preempted",
    "accepted",
    "GFLOP/s",
    "share of peak",
    "peak memory",
)


def table(swept: Sequence[str], results: Sequence[tuple[Mapping[str, Any], Measurement]]) -> Table:
    """A row for each measurement, with the options that differ before it."""
    from rich import box
    from rich.table import Table

    shown = Table(*(name.replace("_", "-") for name in swept), *_COLUMNS, box=box.SIMPLE_HEAD)
    for column in shown.columns:
        column.justify = "right"
    for options, measurement in results:
        shown.add_row(*(str(options[name]) for name in swept), *_cells(measurement))
    return shown


def _cells(measured: Measurement) -> list[str]:
    cached = measured.num_cached_tokens / max(measured.num_prompt_tokens, 1)
    return [
        f"{measured.output_tokens_per_second:,.1f}",
        f"{measured.total_tokens_per_second:,.1f}",
        f"{measured.seconds:,.2f}",
        _two(measured.ttft_ms),
        _two(measured.itl_ms),
        f"{measured.step_ms.get('p50', 0):,.1f}",
        f"{100 * measured.host_share:.1f} %",
        f"{100 * cached:.0f} %",
        f"{measured.num_preemptions:,}",
        _accepted(measured),
        f"{measured.model_flops_per_second / 1e9:,.0f}",
        f"{100 * measured.share_of_peak:.0f} %",
        show_bytes(measured.peak_rss_bytes),
    ]


def _accepted(measured: Measurement) -> str:
    """The share of draft tokens that were accepted."""
    if not measured.num_draft_tokens:
        return "-"
    return f"{100 * measured.num_accepted_tokens / measured.num_draft_tokens:.0f} %"


def _two(percentiles: Mapping[str, float]) -> str:
    return f"{percentiles['p50']:,.0f} / {percentiles['p99']:,.0f}" if percentiles else "-"


def write_json(path: Path, results: Sequence[tuple[Mapping[str, Any], Measurement]]) -> None:
    """A list of {"options": …, "measured": …}. Raises RunFailed where the file cannot be written."""
    write_values(
        path, [{"options": dict(options), "measured": asdict(measurement)} for options, measurement in results]
    )


def write_values(path: Path, values: Any) -> None:
    """Anything as JSON. Raises RunFailed where the file cannot be written."""
    try:
        path.write_bytes(orjson.dumps(values, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    except OSError as error:
        raise RunFailed(f"{path} cannot be written: {error.strerror}") from error
