"""What a job would be, from its rows alone."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner, Result

from esurge_cli.app import app
from esurge_cli.dry_run import Bar, Census, Rate, histogram, read_rate
from esurge_cli.prepare import PreparedRow, SkippedRow
from esurge_cli.rows.row import ErrorType, Row, RowError
from runner.errors import UserError
from runner.weights.safetensors import SafetensorsCheckpoint
from scheduler import SamplingParams


def row(length: int, max_tokens: int = 5, n: int = 1, num_cut: int = 0) -> PreparedRow:
    return PreparedRow(Row(0, 1, None, "x"), [7] * length, SamplingParams(max_tokens=max_tokens, n=n), num_cut)


def error(line: int, kind: ErrorType = ErrorType.INVALID_ROW) -> RowError:
    return RowError(line - 1, line, None, kind, "oh")


def census_of(*outcomes: Any, max_num_seqs: int = 2) -> Census:
    census = Census(max_num_seqs)
    for outcome in outcomes:
        census.add(outcome)
    return census


def test_rows_and_tokens_are_counted() -> None:
    census = census_of(row(3), row(4, n=3), row(9, num_cut=2), SkippedRow(1), error(7))
    assert (census.num_rows, census.num_good, census.num_bad, census.num_skipped, census.num_cut) == (5, 3, 1, 1, 1)
    assert (census.num_prompt_tokens, census.num_output_tokens) == (3 + 3 * 4 + 9, 5 + 3 * 5 + 5)
    assert sorted(census.longest) == [9, 14]


def test_only_the_first_errors_of_a_kind_are_kept() -> None:
    census = census_of(*(error(line) for line in range(1, 100)), error(100, ErrorType.INVALID_JSON))
    assert census.errors == {ErrorType.INVALID_ROW: 99, ErrorType.INVALID_JSON: 1}
    assert [example.line for example in census.examples[ErrorType.INVALID_ROW]] == [1, 2, 3]


@given(st.lists(st.integers(1, 300), min_size=1, max_size=60), st.integers(1, 100))
def test_percentiles_are_numpys(lengths: list[int], percent: int) -> None:
    expected = np.percentile(lengths, percent, method="inverted_cdf")
    assert census_of(*map(row, lengths)).percentile(percent) == expected


@given(st.lists(st.integers(1, 100_000), min_size=1, max_size=60))
def test_every_row_is_in_one_bar(lengths: list[int]) -> None:
    bars = histogram(Counter(lengths))
    assert len(bars) <= 17
    for bar in bars:
        assert bar.num_rows == sum(bar.first <= length <= bar.last for length in lengths)
    assert sum(bar.num_rows for bar in bars) == len(lengths)
    assert all(before.last + 1 == after.first for before, after in pairwise(bars))


def test_what_is_far_beyond_the_others_is_in_the_last_bar() -> None:
    bars = histogram(Counter({1: 500, 15: 499, 4000: 1}))
    assert [bar for bar in bars if bar.num_rows] == [Bar(1, 1, 500), Bar(15, 15, 499), Bar(16, 4000, 1)]


SUMMARY = {
    "tokens": {"prompt": 700, "cached": 100, "output": 400},
    "seconds": {"generate": 10.0},
    "settings": {"model": "m"},
}
BENCH = [
    {
        "options": {"model": "m"},
        "measured": {"num_prompt_tokens": 700, "num_cached_tokens": 0, "num_output_tokens": 300, "seconds": seconds},
    }
    for seconds in (10.0, 5.0)
]


def test_a_rate_comes_from_a_runs_summary_or_a_benchmarks_best(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps(SUMMARY))
    assert read_rate(path) == Rate("m", 100.0)
    path.write_text(json.dumps(BENCH))
    assert read_rate(path) == Rate("m", 200.0)
    for text in ("{", "{}", "[]", "[1]", "3", json.dumps(SUMMARY | {"seconds": {"generate": 0}})):
        path.write_text(text)
        with pytest.raises(UserError, match="is neither a run's summary nor what esurge bench"):
            read_rate(path)
    with pytest.raises(UserError, match="nowhere cannot be read"):
        read_rate(Path("nowhere"))


@pytest.fixture
def model(tiny_checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(SafetensorsCheckpoint, "tensor", lambda *_: pytest.fail("weights were loaded"))
    return str(tiny_checkpoint("llama", tokenizer=True))


def dry_run(path: Path, *arguments: str) -> Result:
    flags = ["--dry-run", "--num-pages", "65", "--max-num-seqs", "2", "--progress", "none"]
    return CliRunner().invoke(app, ["generate", str(path), *flags, *arguments])


def value_of(result: Result, name: str) -> str:
    (line,) = [line for line in result.stdout.splitlines() if line.startswith(f"{name} ")]
    return line.removeprefix(name).strip()


def test_a_job_without_bad_rows(model: str, tmp_path: Path) -> None:
    path, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows = [{"prompt": "x" * length, "max_tokens": 10} for length in (10, 10, 20, 90)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = tmp_path / "s.json"
    summary.write_text(json.dumps(SUMMARY | {"settings": {"model": model}}))
    result = dry_run(path, "-m", model, "-o", str(out), "--summary", str(summary))
    assert result.exit_code == 0, result.exception
    assert value_of(result, "rows") == "4: 4 good"
    assert value_of(result, "prompt tokens") == "130 in all; p50 10, p90 90, p99 90, longest 90"
    assert value_of(result, "output tokens") == "at most 40"
    # 30 and 100 tokens are 2 and 7 pages of 16.
    assert value_of(result, "pages") == "the 2 longest sequences hold at most 9 at once; there are 64"
    assert value_of(result, "time") == "about 0:02 if no row stops early, by the 100 tokens/s of the earlier run"
    bars = [line.split() for line in result.stdout.splitlines() if line.rstrip().endswith("#")]
    assert bars == [["10-19", "2", "#" * 40], ["20-29", "1", "#" * 20], ["90-99", "1", "#" * 20]]
    assert not out.exists()
    assert json.loads(summary.read_text())["tokens"] == SUMMARY["tokens"]


def test_bad_rows_are_shown_with_their_lines_and_give_3(model: str, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"prompt": "a"}\n{\n\n{"prompt": 1}\n' + json.dumps({"prompt": "x" * 600}) + "\n")
    result = dry_run(path, "-m", model)
    assert result.exit_code == 3
    assert value_of(result, "rows") == "4: 1 good, 3 bad"
    assert "no rate is known" in value_of(result, "time")
    assert value_of(result, "invalid_row") == "1  line 4: prompt must be a string or a list of token ids"
    assert "line 5: the prompt of 600 tokens" in value_of(result, "prompt_too_long")
    shortened = dry_run(path, "-m", model, "--on-too-long", "truncate-left", "--max-model-len", "64")
    assert value_of(shortened, "rows") == "4: 2 good (1 of them shortened), 2 bad"
    skipped = dry_run(path, "-m", model, "--on-too-long", "skip")
    assert value_of(skipped, "rows") == "4: 1 good, 2 bad, 1 skipped as too long"


def test_a_pool_that_is_too_small_is_said(model: str, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text((json.dumps({"prompt": "x" * 400}) + "\n") * 4)
    result = dry_run(path, "-m", model, "--max-num-seqs", "4")
    assert "hold at most 128 at once; there are 64, so that fewer run" in value_of(result, "pages")


def test_an_empty_input_is_fine(model: str, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.touch()
    result = dry_run(path, "-m", model)
    assert (result.exit_code, value_of(result, "rows")) == (0, "0: 0 good")


def test_bars_are_drawn_on_a_terminal() -> None:
    from esurge_cli.dry_run_report import _bars

    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    console.print(_bars([Bar(0, 9, 4), Bar(10, 19, 1)], is_terminal=True))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert shown.count("█") == 40 + 10
