"""`esurge bench --compare`: our whole command and those of peers, in turns."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_engine import process_code, wait_until
from typer.testing import CliRunner

from esurge_cli.app import app
from esurge_cli.bench.compare import Contender, Report, Run, Spread, compare, peer, report_of_line, results_of, table
from esurge_cli.display import Display
from runner.errors import UserError

LINE = {"engine": "quick", "start_s": 1.5, "wall_s": 2, "output_tokens_per_s": 50, "peak_rss_mb": 7}


def python(code: str) -> str:
    return shlex.join([sys.executable, "-c", code])


def run(*commands: str, rounds: int = 2) -> tuple[list[Contender], list[str]]:
    """The contenders afterwards, and what was noted."""
    contenders = [peer(command) for command in commands]
    notes: list[str] = []
    compare(contenders, rounds, Display(), notes.append)
    return contenders, notes


def test_commands_run_in_turns(tmp_path: Path) -> None:
    names = [f"print({name!r}, end='', file=open({str(tmp_path / 'log')!r}, 'a'))" for name in "abc"]
    contenders, notes = run(*map(python, names), rounds=3)
    assert (tmp_path / "log").read_text() == "abcabcabc"
    assert [len(contender.runs) for contender in contenders] == [3, 3, 3]
    assert notes == []


def test_a_run_is_timed_from_outside_and_reports_the_rest_itself() -> None:
    code = f"import time; print('noise'); time.sleep(0.3); print({json.dumps(LINE)!r}); print()"
    ((contender,), _) = run(python(code), rounds=1)
    assert contender.name == "quick"
    (one,) = contender.runs
    assert 0.3 <= one.seconds < 10
    assert one.peak_rss_bytes > 1 << 20
    assert (one.start_seconds, one.output_tokens_per_second) == (1.5, 50)


@pytest.mark.parametrize(
    ("line", "report"),
    [
        (json.dumps(LINE), Report("quick", 1.5, 50)),
        ('{"output_tokens_per_s": 3}', Report(None, None, 3)),
        ('{"engine": 1, "start_s": "2", "output_tokens_per_s": true}', Report()),
        ("", Report()),
        ("done", Report()),
        ("[1]", Report()),
        ("12", Report()),
    ],
)
def test_the_last_line_of_a_peer(line: str, report: Report) -> None:
    assert report_of_line(line) == report


def test_a_peer_that_fails_is_one_line_and_runs_no_more(tmp_path: Path) -> None:
    """The second time it runs, that is; the others go on."""
    seen = str(tmp_path / "seen")
    failing = python(f"import os; os.mkdir({seen!r})")
    contenders, notes = run(python("1"), failing, python("2"), rounds=3)
    assert [len(contender.runs) for contender in contenders] == [3, 1, 3]
    assert notes == [contenders[1].failure]
    assert notes[0].startswith(f"{failing} ended with status 1: FileExistsError")
    assert notes[0].endswith(f"File exists: '{seen}'")


def test_what_ends_a_peer_is_named(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("neither binary nor #!")
    script.chmod(0o755)
    _, notes = run(python("1"), python("import os; os.abort()"), str(script), python("exit(3)"))
    assert [note.rpartition(" -c ")[2] for note in notes] == [
        "'import os; os.abort()' was ended by SIGABRT",
        f"{script} cannot be run: Exec format error",
        "'exit(3)' ended with status 3",
    ]


def test_where_ours_fails_nothing_more_is_run() -> None:
    contenders, notes = run(python("exit(1)"), python("1"))
    assert [contender.runs for contender in contenders] == [[], []]
    assert len(notes) == 1


def of_runs(name: str, *runs: tuple[float, float | None]) -> Contender:
    return Contender(name, [name], report_of_line, runs=[Run(seconds, 1 << 20, None, rate) for seconds, rate in runs])


def test_ratios_are_of_the_same_round_and_their_median_is_taken() -> None:
    ours = of_runs("ours", (10, 30), (40, 60), (30, 90))
    its = of_runs("its", (5, 10), (20, 30), (60, 90))
    short = of_runs("short", (20, None), (20, 120))
    first, second, third = results_of([ours, its, short])
    assert first.seconds == Spread(30, 10, 40)
    assert first.seconds_ratio is None
    assert second.seconds == Spread(20, 5, 60)
    assert second.seconds_ratio == Spread(2, 0.5, 2)  # not 30 / 20
    assert second.output_tokens_per_second_ratio == Spread(2, 1, 3)
    assert third.seconds_ratio == Spread(1.25, 0.5, 2)
    assert third.output_tokens_per_second_ratio == Spread(0.5, 0.5, 0.5)


def test_the_table_has_the_least_and_the_most_beside_the_median() -> None:
    results = results_of([of_runs("ours", (10, 30), (20, 40)), of_runs("[its]", (40, None), (40, None)), of_runs("no")])
    columns = [list(column.cells) for column in table(results).columns]
    assert [str(cell) for cell in columns[0]] == ["ours", "[its]", "no"]
    assert columns[1] == ["15.00 (10.00 … 20.00)", "40.00 (40.00 … 40.00)", "-"]
    assert columns[3] == ["35.0 (30.0 … 40.0)", "-", "-"]
    assert columns[5] == ["-", "0.375 (0.250 … 0.500)", "-"]


def bench(*arguments: str) -> list[str]:
    return [sys.executable, "-c", process_code(), "bench", "--progress", "none", *arguments]


@pytest.fixture
def workload(tmp_path: Path) -> str:
    path = tmp_path / "in.jsonl"
    path.write_text('{"prompt": "abcdef", "temperature": 0}\n' * 3)
    return str(path)


def test_ours_is_the_whole_command_with_the_same_flags(workload: str, tmp_path: Path) -> None:
    """On an engine that says it took a second to load, whatever the environment says of `esurge generate`."""
    big = python(f"b'x' * (200 << 20); print({json.dumps(LINE)!r})")
    out = tmp_path / "out.json"
    flags = ["--max-tokens", "4", "--num-prompts", "2", "--max-num-seqs", "2", "--rounds", "2", "--json", str(out)]
    done = subprocess.run(
        bench(workload, *flags, "--compare", big, "--compare", "true"),
        env=os.environ | {"ESURGE_DRY_RUN": "1", "ESURGE_SEED": "7"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    shown = [line.split()[0] for line in done.stdout.splitlines() if line.strip()]
    assert shown[2:] == ["esurge", "quick", "true"]
    values = json.loads(out.read_text())
    assert (values["options"]["max_num_seqs"], values["options"]["seed"]) == (2, 7)
    ours, quick, other = values["commands"]
    assert {"--max-tokens=4", "--limit=2", "--max-num-seqs=2", "--seed=7"} < set(ours["command"])
    assert [one["start_seconds"] for one in ours["runs"]] == [1.0, 1.0]
    assert all(one["output_tokens_per_second"] > 0 for one in ours["runs"])
    assert ours["seconds"]["median"] > 0
    assert 200 << 20 < quick["peak_rss_bytes"]["median"] < 400 << 20
    rates = [one["output_tokens_per_second"] / 50 for one in ours["runs"]]
    assert quick["output_tokens_per_second_ratio"]["median"] == pytest.approx(sum(rates) / 2)
    assert other["output_tokens_per_second"] is None
    assert other["seconds_ratio"]["min"] > 1


def test_a_failure_is_status_1_after_the_others_are_shown(workload: str) -> None:
    failing = python("raise SystemExit('no such model')")
    arguments = [workload, "--rounds", "1", "--compare", failing, "--compare", "true"]
    done = subprocess.run(bench(*arguments), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == f"esurge: {failing} ended with status 1: no such model\n"
    assert "esurge generate" in done.stdout
    assert "true" in done.stdout


def test_error_rows_of_ours_are_a_failure(workload: str) -> None:
    Path(workload).write_text("{broken\n")
    arguments = [workload, "--rounds", "1", "--compare", "true"]
    done = subprocess.run(bench(*arguments), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("esurge: esurge generate ended with status 3: esurge: 1 row failed")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_peer_and_what_it_has_started(number: signal.Signals, workload: str, tmp_path: Path) -> None:
    """All of its processes have the same pipe open, which ends with the last of them."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    waiting = f"sh -c 'exec 3>{pipe}; sleep 100 & echo started >&3; wait'"
    with subprocess.Popen(
        bench(workload, "--compare", waiting), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as ours:
        wait_until(lambda: _read(reading) == b"started\n", seconds=60)
        ours.send_signal(number)
        ours.communicate(timeout=10)
    assert ours.returncode == 128 + number
    wait_until(lambda: _read(reading) == b"")
    os.close(reading)


def _read(pipe: int) -> bytes | None:
    """None where it holds nothing, and b"" where nobody writes to it."""
    try:
        return os.read(pipe, 100)
    except BlockingIOError:
        return None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--compare", "true"], "--compare needs files as INPUT"),
        (["-", "--compare", "true"], "--compare needs files as INPUT"),
        (["in.jsonl", "--compare", "true", "--seed", "1,2"], "--compare takes one value of each flag"),
        (["in.jsonl", "--compare", "true", "--rounds", "0"], "--rounds must be at least 1"),
        (["in.jsonl", "--rounds", "3"], "--rounds goes with --compare"),
        (["in.jsonl", "--compare", "it's"], "--compare it's: No closing quotation"),
        (["in.jsonl", "--compare", ""], "--compare needs a command"),
        (["in.jsonl", "--compare", "./nothing x"], "--compare ./nothing x: there is no program ./nothing"),
    ],
)
def test_a_wrong_comparison_is_one_line(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["bench", *arguments])
    assert isinstance(result.exception, UserError)
    assert str(result.exception).startswith(message)


def test_a_real_engine(tiny_checkpoint: Callable[..., Path], workload: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    sizes = ["--max-num-seqs", "4", "--max-batched-tokens", "8", "--num-pages", "65", "--max-model-len", "64"]
    model = str(tiny_checkpoint("llama", tokenizer=True))
    code = "from esurge_cli.app import main; main()"
    command = [sys.executable, "-c", code, "bench", workload, "-m", model, *sizes, "--max-tokens", "5", "--ignore-eos"]
    done = subprocess.run(
        [*command, "--compare", python("1"), "--rounds", "1", "--json", str(out)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ours: dict[str, Any] = json.loads(out.read_text())["commands"][0]
    (one,) = ours["runs"]
    assert 0 < one["start_seconds"] < one["seconds"]
    assert one["output_tokens_per_second"] > 15 / one["seconds"]
