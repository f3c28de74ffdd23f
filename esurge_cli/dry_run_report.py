"""What `--dry-run` has found, for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from esurge_cli.dry_run import Bar, Census, Rate, histogram, pages_at_once
from esurge_cli.rows.row import ErrorType
from esurge_cli.sizes import show_time

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from runner.options import EnginePlan

_BAR_WIDTH = 40


def print_report(console: Console, census: Census, plan: EnginePlan, model: str | None, rate: Rate | None) -> None:
    """`model` is called as the flag calls it, and `rate` a rate that was measured, if any."""
    console.print(_facts(census, plan, model, rate))
    if census.num_good:
        console.print("\nPrompt tokens", style="bold")
        console.print(_bars(histogram(census.lengths), is_terminal=console.is_terminal))
    if census.num_bad:
        console.print("\nBad rows", style="bold")
        console.print(_bad_rows(census))


def _facts(census: Census, plan: EnginePlan, model: str | None, rate: Rate | None) -> Table:
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_row("rows", _rows(census))
    if census.num_good:
        shown = ", ".join(f"p{percent} {census.percentile(percent):,}" for percent in (50, 90, 99))
        table.add_row("prompt tokens", f"{census.num_prompt_tokens:,} in all; {shown}, longest {max(census.lengths):,}")
        table.add_row("output tokens", f"at most {census.num_output_tokens:,}")
        table.add_row("pages", _pages(census, plan))
        table.add_row("time", _time(census, model, rate))
    return table


def _rows(census: Census) -> str:
    parts = [f"{census.num_good:,} good"]
    if census.num_cut:
        parts[0] += f" ({census.num_cut:,} of them shortened)"
    others = {"bad": census.num_bad, "skipped as too long": census.num_skipped}
    parts += [f"{count:,} {kind}" for kind, count in others.items() if count]
    return f"{census.num_rows:,}: {', '.join(parts)}"


def _pages(census: Census, plan: EnginePlan) -> str:
    needed, held = pages_at_once(census, plan), plan.layout.num_pages - 1
    sequences = f"the {len(census.longest):,} longest sequences hold at most {needed:,} at once; there are {held:,}"
    if needed <= held:
        return sequences
    return f"{sequences}, so that fewer run, or some are preempted and computed twice"


def _time(census: Census, model: str | None, rate: Rate | None) -> str:
    if rate is None:
        return (
            "no rate is known: name with --summary the summary of an earlier run, "
            "or what esurge bench --json FILE has written"
        )
    if rate.model != model:
        return f"the rate that --summary names is of another model, {rate.model or 'the default one'}"
    seconds = (census.num_prompt_tokens + census.num_output_tokens) / rate.tokens_per_second
    return (
        f"about {show_time(seconds)} if no row stops early, "
        f"by the {rate.tokens_per_second:,.0f} tokens/s of the earlier run"
    )


def _bars(bars: list[Bar], is_terminal: bool) -> Table:
    from rich.bar import Bar as RichBar
    from rich.table import Table

    most = max(bar.num_rows for bar in bars)
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", justify="right")
    table.add_column(justify="right")
    table.add_column(width=_BAR_WIDTH)
    for bar in bars:
        tokens = f"{bar.first:,}" if bar.first == bar.last else f"{bar.first:,}-{bar.last:,}"
        length = _BAR_WIDTH * bar.num_rows / most
        drawn = RichBar(_BAR_WIDTH, 0, length, color="cyan") if is_terminal else "#" * round(length)
        table.add_row(tokens, f"{bar.num_rows:,}", drawn)
    return table


def _bad_rows(census: Census) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right")
    for kind, count in census.errors.most_common():
        table.add_row(kind.value, f"{count:,}", Text("\n".join(_examples(census, kind))))
    return table


def _examples(census: Census, kind: ErrorType) -> Iterator[str]:
    for error in census.examples[kind]:
        yield f"line {error.line:,}: {error.message}"
    if census.errors[kind] > len(census.examples[kind]):
        yield "…"
