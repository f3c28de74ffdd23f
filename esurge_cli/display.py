"""How a run looks while it goes on: Rich on a terminal, plain lines elsewhere. All of it is on stderr."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from esurge_cli.sizes import show_bytes, show_time

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress as RichProgress
    from rich.progress import Task, TaskID
    from rich.table import Table

    from esurge_cli.totals import Totals
    from scheduler.stats import SchedulerStats

_TASKS = {"download": "Downloading", "load": "Loading", "compile": "Compiling"}
_FILE_WIDTH = 250
_PLAIN_INTERVAL = 10.0
_REFRESHES_PER_SECOND = 4
_RATE_WINDOW = 10.0


@dataclass(frozen=True, slots=True)
class Status:
    """Where a run stands. `num_rows` are the rows of the whole input, None while that is not known."""

    totals: Totals
    scheduler: SchedulerStats
    num_rows: int | None


class Display:
    """Told of everything that happens; shows nothing of it but notes. Also the Progress of loading and compiling."""

    def __call__(self, task: str, done: float, total: float | None) -> None:
        """See runner.progress.Progress."""

    def header(self, lines: Sequence[str]) -> None:
        """What is in force, before the first step; rates are counted from here."""

    def update(self, status: Status) -> None:
        """After a step, or while rows are awaited."""

    def footer(self, lines: Sequence[str]) -> None:
        """How it went; nothing but `note` comes after."""

    def note(self, text: str) -> None:
        """Something that the user should know, whatever is shown besides."""
        print(f"esurge: {text}", file=sys.stderr, flush=True)

    def paused(self) -> AbstractContextManager[None]:
        """While others write to the terminal."""
        return nullcontext()

    def close(self) -> None:
        """Leave the terminal as it was."""


def make_display(kind: str) -> Display:
    """`kind` is rich, plain, none, or auto: rich where stderr is a terminal."""
    if kind == "none":
        return Display()
    if kind == "rich" or (kind == "auto" and sys.stderr.isatty()):
        return RichDisplay()
    return PlainDisplay()


def results_console() -> Console:
    """For tables on stdout, which are not broken to fit where there is no terminal."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else _FILE_WIDTH)


class Rates:
    """Prompt and output tokens a second over the last seconds, and the time that is left by the rate so far.

    For the time a running row counts as half done.
    """

    def __init__(self) -> None:
        self._points: deque[tuple[float, int, int]] = deque()
        self._start: float | None = None

    def add(self, status: Status) -> None:
        now = time.monotonic()
        self._start = self._start or now
        computed = status.scheduler.num_prompt_tokens - status.scheduler.num_cached_tokens
        self._points.append((now, computed, status.totals.num_output_tokens))
        while now - self._points[0][0] > _RATE_WINDOW:
            self._points.popleft()

    def of(self, column: int) -> float:
        """1: prompt tokens computed a second, 2: output tokens."""
        first, last = self._points[0], self._points[-1]
        return (last[column] - first[column]) / (last[0] - first[0]) if last[0] > first[0] else 0.0

    def elapsed(self) -> float:
        return 0.0 if self._start is None else time.monotonic() - self._start

    def left(self, status: Status) -> float | None:
        """Seconds, where the number of rows is known and the first are done."""
        if not status.num_rows or not status.totals.num_done:
            return None
        num_done = status.totals.num_done + status.scheduler.num_running / 2
        return max(0.0, self.elapsed() * (status.num_rows / num_done - 1))


def _counts(status: Status, rates: Rates) -> list[tuple[str, str]]:
    """Names and values, as shown in either kind of display."""
    totals, stats = status.totals, status.scheduler
    hits = 100 * stats.num_cached_tokens / max(stats.num_prompt_tokens, 1)
    used = 100 * stats.num_used_pages / max(stats.num_pages, 1)
    counts = [
        ("running", f"{stats.num_running:,}"),
        ("waiting", f"{stats.num_waiting:,}"),
        ("done", f"{totals.num_done:,}"),
        ("failed", f"{totals.num_failed:,}"),
        ("prompt", f"{rates.of(1):,.0f} tokens/s"),
        ("output", f"{rates.of(2):,.0f} tokens/s"),
        ("KV pages", f"{stats.num_used_pages:,} of {stats.num_pages:,} ({used:.0f} %)"),
        ("prefix hits", f"{hits:.0f} %"),
        ("preemptions", f"{stats.num_preemptions:,}"),
    ]
    if stats.num_draft_tokens:
        accepted = 100 * stats.num_accepted_tokens / stats.num_draft_tokens
        counts.append(("drafts accepted", f"{accepted:.0f} %"))
    return counts


class PlainDisplay(Display):
    """Whole lines, for logs: the beginning and end of each task, and the counts every ten seconds."""

    def __init__(self) -> None:
        self._rates = Rates()
        self._last = time.monotonic()
        self._tasks: set[str] = set()

    def __call__(self, task: str, done: float, total: float | None) -> None:
        if total == 0:
            return
        is_end = total is not None and done >= total
        if task in self._tasks and is_end:
            self._tasks.remove(task)
            self.note(f"{_TASKS.get(task, task)}: done ({_amount(task, done)})")
        elif task not in self._tasks and not is_end:
            self._tasks.add(task)
            self.note(f"{_TASKS.get(task, task)} …")

    def header(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.note(line)
        self._last = time.monotonic()
        self._rates = Rates()

    def update(self, status: Status) -> None:
        self._rates.add(status)
        if time.monotonic() - self._last < _PLAIN_INTERVAL:
            return
        self._last = time.monotonic()
        counts = "  ".join(f"{name} {value}" for name, value in _counts(status, self._rates))
        rows = f"  of {status.num_rows:,} rows" if status.num_rows else ""
        left = self._rates.left(status)
        self.note(f"{counts}{rows}" + (f"  {show_time(left)} left" if left is not None else ""))

    def footer(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.note(line)


class RichDisplay(Display):
    """A few live lines at the bottom of the terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(stderr=True, highlight=False)
        self._rates = Rates()
        self._status: Status | None = None
        self._tasks: dict[str, TaskID] = {}
        self._progress = _task_bars()
        self._live = Live(
            get_renderable=self._render,
            console=self._console,
            refresh_per_second=_REFRESHES_PER_SECOND,
            transient=True,
            redirect_stdout=False,
        )
        self._live.start()

    def __call__(self, task: str, done: float, total: float | None) -> None:
        self._status = None  # of the run before it, where there was one
        if task not in self._tasks:
            self._tasks[task] = self._progress.add_task(_TASKS.get(task, task), total=total, name=task)
        self._progress.update(self._tasks[task], completed=done, total=total)
        if total is not None and done >= total:
            self._progress.remove_task(self._tasks.pop(task))

    def header(self, lines: Sequence[str]) -> None:
        from rich.text import Text

        self._rates = Rates()
        first, *rest = lines
        self._console.print(Text.assemble((first, "bold")))
        for line in rest:
            self._console.print(Text(line, "dim"))

    def update(self, status: Status) -> None:
        self._rates.add(status)
        self._status = status

    def footer(self, lines: Sequence[str]) -> None:
        self.close()
        for line in lines:
            self._console.print(line, markup=False)

    def note(self, text: str) -> None:
        from rich.text import Text

        self._console.print(Text.assemble(("esurge: ", "yellow"), text))

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._live.stop()
        yield
        self._live.start()

    def close(self) -> None:
        self._live.stop()

    def _render(self) -> RenderableType:
        if self._status is None:
            return self._progress
        return _panel(self._status, self._rates)


def _panel(status: Status, rates: Rates) -> RenderableType:
    """A bar of rows, and the counts under it."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    totals = status.totals
    left = rates.left(status)
    of_all = "" if status.num_rows is None else f" of {status.num_rows:,}"
    times = f"{show_time(rates.elapsed())}" + ("" if left is None else f", {show_time(left)} left")
    top = Table.grid(padding=(0, 2), expand=True)
    top.add_column(ratio=1)
    top.add_column(no_wrap=True)
    top.add_column(no_wrap=True, style="dim")
    bar = ProgressBar(total=status.num_rows or None, completed=totals.num_done, pulse=not status.num_rows)
    top.add_row(bar, f"{totals.num_done:,}{of_all} rows", times)
    return Group(Text(), top, _grid(status, rates))


def _grid(status: Status, rates: Rates) -> Table:
    """The counts in two lines."""
    from rich.table import Table
    from rich.text import Text

    running, waiting, done, failed, prompt, output, pages, hits, preemptions, *drafts = _counts(status, rates)
    lines = (running, done, prompt, pages, preemptions), (waiting, failed, output, hits, *drafts)
    grid = Table.grid(padding=(0, 2))
    for _ in lines[0]:
        grid.add_column(no_wrap=True, style="dim")
        grid.add_column(no_wrap=True, justify="right")
    for line in lines:
        cells = [
            Text(text, "bold red" if name == "failed" and status.totals.num_failed else "")
            for name, value in line
            for text in (name, value)
        ]
        grid.add_row(*cells)
    return grid


def _task_bars() -> RichProgress:
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
    from rich.text import Text

    class Amount(ProgressColumn):
        def render(self, task: Task) -> Text:
            done = _amount(task.fields["name"], task.completed)
            return Text(done if task.total is None else f"{done} of {_amount(task.fields['name'], task.total)}")

    return Progress(TextColumn("{task.description}"), BarColumn(), Amount(), TimeElapsedColumn())


def _amount(task: str, number: float) -> str:
    return show_bytes(number) if task == "download" else f"{number:,.0f}"
