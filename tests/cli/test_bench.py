"""`esurge bench`: what is run, what is measured, and how few engines it takes."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from fake_engine import EchoRunner, install, make_engine
from typer.testing import CliRunner

from esurge_cli.app import app
from esurge_cli.bench.measure import measure
from esurge_cli.bench.peak import gemm_peak
from esurge_cli.bench.report import table
from esurge_cli.bench.sweep import by_engine, swept_fields
from esurge_cli.bench.workload import random_rows
from esurge_cli.options import EngineOptions
from esurge_cli.prepare import PreparedRow

ROWS = random_rows(12, 10, 6, vocab_size=260, seed=0)


@pytest.fixture(autouse=True)
def peak(monkeypatch: pytest.MonkeyPatch) -> float:
    """That of the machine, which takes a second to measure."""
    monkeypatch.setattr("esurge_cli.bench.measure.gemm_peak", lambda dtype: 4e6)
    return 4e6


def watch(status: Any) -> None:
    pass


def test_random_rows_are_the_same_for_the_same_seed_and_of_the_lengths_asked() -> None:
    assert random_rows(12, 10, 6, vocab_size=260, seed=0) == ROWS
    assert random_rows(12, 10, 6, vocab_size=260, seed=1) != ROWS
    for row in ROWS:
        assert isinstance(row, PreparedRow)
        assert 5 <= len(row.prompt_token_ids) <= 15
        assert 3 <= row.params.max_tokens <= 9
        assert max(row.prompt_token_ids) < 260
        assert row.params.ignore_eos


def test_all_tokens_are_generated_and_counted() -> None:
    measured = measure(make_engine(), EngineOptions(), ROWS, watch)
    prompt = sum(len(row.prompt_token_ids) for row in ROWS)  # type: ignore[union-attr]
    output = sum(row.params.max_tokens for row in ROWS)  # type: ignore[union-attr]
    assert (measured.num_rows, measured.num_failed) == (12, 0)
    assert (measured.num_prompt_tokens, measured.num_output_tokens) == (prompt, output)
    assert measured.output_tokens_per_second == pytest.approx(output / measured.seconds)
    assert measured.total_tokens_per_second == pytest.approx((prompt + output) / measured.seconds)
    # The last token of a row is never computed.
    assert measured.model_flops_per_second == pytest.approx(1000 * (prompt + output - 12) / measured.seconds)


@pytest.mark.parametrize("is_async", [False, True])
def test_times_are_of_the_steps(is_async: bool) -> None:
    """Steps of 2 ms, one row at a time: its first token takes one step, or two where they overlap."""
    runner = EchoRunner(before_step=lambda step: time.sleep(0.002), max_num_seqs=1)
    measured = measure(make_engine(runner), EngineOptions(async_scheduling=is_async), ROWS[:1], watch)
    assert 2 <= measured.step_ms["p50"] < 20
    assert 2 <= measured.ttft_ms["p50"] < 40
    assert 2 <= measured.itl_ms["p50"] < 40
    assert 0 < measured.host_share < 0.5
    assert measured.peak_rss_bytes > 1 << 20


def test_a_compilation_within_what_is_measured_is_an_error() -> None:
    runner = EchoRunner()

    def compile_something(step: int) -> None:
        runner.num_compilations += 1

    runner.before_step = compile_something
    with pytest.raises(AssertionError, match="compiled while it was measured"):
        measure(make_engine(runner), EngineOptions(), ROWS, watch)


def test_points_that_only_the_scheduler_tells_apart_share_an_engine_of_the_largest_budget() -> None:
    points = [
        EngineOptions(max_num_batched_tokens=budget, enable_prefix_caching=caching, max_num_seqs=seqs)
        for seqs in (8, 16)
        for budget in (256, 1024)
        for caching in (True, False)
    ]
    engines = list(by_engine(points))
    assert [(engine.max_num_seqs, engine.max_num_batched_tokens) for engine, _ in engines] == [(8, 1024), (16, 1024)]
    assert [members for _, members in engines] == [points[:4], points[4:]]
    assert swept_fields(points) == ["max_num_seqs", "max_num_batched_tokens", "enable_prefix_caching"]


def bench(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    install(monkeypatch)
    return CliRunner().invoke(app, ["bench", "--progress", "none", *arguments])


def test_each_budget_is_a_line_of_the_table_and_of_the_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    sizes = ["--num-prompts", "6", "--input-len", "20", "--output-len", "4"]
    result = bench(monkeypatch, *sizes, "--max-batched-tokens", "8,32", "--json", str(path))
    assert result.exit_code == 0, result.exception
    lines = [line for line in result.stdout.splitlines() if line.strip()]
    assert "max-num-batched-tokens" in lines[0]
    assert [line.split()[0] for line in lines[2:4]] == ["8", "32"]
    runs = json.loads(path.read_text())
    assert [run["options"]["max_num_batched_tokens"] for run in runs] == [8, 32]
    assert runs[0]["measured"]["num_steps"] > runs[1]["measured"]["num_steps"]


def test_accepted_drafts_are_told() -> None:
    measured = replace(measure(make_engine(), EngineOptions(), ROWS, watch), num_draft_tokens=8, num_accepted_tokens=6)
    (cells,) = [column.cells for column in table([], [({}, measured)]).columns if column.header == "accepted"]
    assert list(cells) == ["75 %"]


def test_the_share_of_the_machines_peak_is_told(peak: float) -> None:
    measured = replace(measure(make_engine(), EngineOptions(), ROWS, watch), model_flops_per_second=5e6)
    assert measured.gemm_peak_flops_per_second == peak
    (cells,) = [column.cells for column in table([], [({}, measured)]).columns if column.header == "share of peak"]
    assert list(cells) == ["125 %"]


def test_the_peak_is_about_what_numpys_product_reaches() -> None:
    a = np.random.default_rng(0).standard_normal((1024, 1024), np.float32)
    start = time.perf_counter()
    a @ a
    reached = 2 * 1024**3 / (time.perf_counter() - start)
    assert reached / 10 < gemm_peak("float32", seconds=0.01) < reached * 20


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_peak_is_of_the_engines_dtype(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esurge_cli.bench.peak._SIZES", (64,))
    seen = []
    dot = jnp.dot
    monkeypatch.setattr(jnp, "dot", lambda a, b, **options: seen.append((a.dtype, b.dtype)) or dot(a, b, **options))
    assert gemm_peak(dtype, seconds=0.001) > 0
    assert seen == [(jnp.dtype(dtype), jnp.dtype(dtype))]


def test_a_switch_is_swept_by_giving_it_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    result = bench(
        monkeypatch, "--num-prompts", "2", "--enable-prefix-caching", "--no-enable-prefix-caching", "--seed", "0,1"
    )
    lines = [line for line in result.stdout.splitlines() if line.strip()]
    assert [line.split()[:2] for line in lines[2:]] == [
        ["True", "0"],
        ["True", "1"],
        ["False", "0"],
        ["False", "1"],
    ]


def test_a_workload_file_is_read_as_generate_reads_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file, out = tmp_path / "in.jsonl", tmp_path / "out.json"
    file.write_text('{"prompt": "abcdef"}\n{broken\n{"prompt": [5, 6], "max_tokens": 1}\n')
    assert bench(monkeypatch, str(file), "--max-tokens", "3", "--json", str(out)).exit_code == 0
    (run,) = json.loads(out.read_text())
    measured = run["measured"]
    assert (measured["num_rows"], measured["num_failed"], measured["num_output_tokens"]) == (3, 1, 4)
    assert bench(monkeypatch, str(file), "--num-prompts", "1", "--json", str(out)).exit_code == 0
    assert json.loads(out.read_text())[0]["measured"]["num_rows"] == 1
