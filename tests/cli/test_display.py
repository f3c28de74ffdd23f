"""What people see while it runs, on a terminal and elsewhere."""

from __future__ import annotations

import json
import os
import pty
import re
import select
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fake_engine import process

from esurge_cli.display import Display, PlainDisplay, Rates, RichDisplay, Status, make_display
from esurge_cli.rows.row import ErrorType
from esurge_cli.totals import Totals
from scheduler.stats import SchedulerStats


def status(**totals: Any) -> Status:
    stats = SchedulerStats(3, 4, num_used_pages=50, num_pages=200, num_prompt_tokens=400, num_cached_tokens=100)
    return Status(Totals(**totals), stats, num_rows=40)


class Clock:
    """time.monotonic, moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("esurge_cli.display.time.monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_rates_are_of_the_last_ten_seconds_and_the_time_left_of_all(clock: Clock) -> None:
    rates = Rates()
    # 9 rows and 3 that are half done, of 40, in 20 seconds
    for now, tokens, done in ((100, 0, 0), (110, 1000, 5), (115, 1100, 8), (120, 1200, 10)):
        clock.now = now
        rates.add(status(num_output_tokens=tokens, num_good=done))
    assert rates.of(2) == pytest.approx(20.0)
    assert rates.elapsed() == 20.0
    assert rates.left(status(num_good=9)) == pytest.approx(20 * (40 / 10.5 - 1))
    assert rates.left(status()) is None
    assert rates.left(Status(Totals(num_good=1), SchedulerStats(), None)) is None


def test_plain_lines_come_every_ten_seconds(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    display = PlainDisplay()
    display.header(["a model", "settings"])
    for second in range(25):
        clock.now = 100.0 + second
        display.update(status(num_output_tokens=10 * second, num_good=second, errors=Counter({ErrorType.ENGINE: 0})))
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert lines[:2] == ["esurge: a model", "esurge: settings"]
    assert len(lines) == 4
    assert lines[2] == (
        "esurge: running 3  waiting 4  done 10  failed 0  prompt 0 tokens/s  output 10 tokens/s  "
        "KV pages 50 of 200 (25 %)  prefix hits 25 %  preemptions 0  of 40 rows  0:25 left"
    )


def test_accepted_drafts_are_shown_where_there_are_any(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    display = PlainDisplay()
    stats = SchedulerStats(num_draft_tokens=200, num_accepted_tokens=150)
    clock.now += 20
    display.update(Status(Totals(), stats, None))
    assert capsys.readouterr().err.endswith("preemptions 0  drafts accepted 75 %\n")


def test_plain_tasks_are_told_of_twice(capsys: pytest.CaptureFixture[str]) -> None:
    display = PlainDisplay()
    for done in range(5):
        display("compile", done, 4)
    display("load", 0, 0)  # nothing to do
    display("download", 0, None)
    display("download", 3 << 20, 3 << 20)
    assert capsys.readouterr().err.splitlines() == [
        "esurge: Compiling …",
        "esurge: Compiling: done (4)",
        "esurge: Downloading …",
        "esurge: Downloading: done (3 MiB)",
    ]


def test_which_display_is_made() -> None:
    assert type(make_display("none")) is Display
    assert isinstance(make_display("plain"), PlainDisplay)
    assert isinstance(make_display("auto"), PlainDisplay)  # stderr is no terminal here
    rich = make_display("rich")
    rich.close()
    assert isinstance(rich, RichDisplay)


def in_terminal(*arguments: str, both: bool, pause: float) -> tuple[str, str]:
    """What comes out on a terminal of 100 columns (stderr, and with `both` stdout) and on stdout otherwise."""
    terminal, slave = pty.openpty()
    os.set_inheritable(slave, True)
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    options = {"stderr": slave, "env": environment} | ({"stdout": slave} if both else {})
    shown = b""
    with process(*arguments, pause=pause, load_pause=0.5, **options) as esurge:
        os.close(slave)
        while select.select([terminal], [], [], 60)[0]:
            try:
                shown += os.read(terminal, 65536)
            except OSError:  # the other side was closed
                break
        output = "" if both else esurge.stdout.read()
        assert esurge.wait(60) == 3
    os.close(terminal)
    return shown.decode(), output


def without_styles(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


def rows(folder: Path) -> str:
    path = folder / "in.jsonl"
    path.write_text("".join('{"prompt": "twenty characters xx"}\n' for _ in range(12)) + "{\n")
    return str(path)


def test_on_a_terminal_it_is_live_and_leaves_the_terminal_as_it_was(tmp_path: Path) -> None:
    shown, output = in_terminal(rows(tmp_path), both=False, pause=0.05)
    assert len(output.splitlines()) == 13
    text = without_styles(shown)
    for expected in (
        "Loading",
        "echo  float32",
        "running",
        "waiting",
        "KV pages",
        "prefix hits",
        "preemptions",
        " of 13 rows",
    ):
        assert expected in text, expected
    assert text.rstrip().splitlines()[-3].startswith("13 rows in 0:0")
    assert "12 good, 1 failed (invalid_json 1)" in text
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h")  # the cursor


def test_results_on_the_same_terminal_are_whole_lines(tmp_path: Path) -> None:
    shown, _ = in_terminal(rows(tmp_path), both=True, pause=0.02)
    lines = [line for line in without_styles(shown).replace("\r", "\n").splitlines() if line.startswith("{")]
    assert [json.loads(line)["index"] for line in lines] == list(range(13))
