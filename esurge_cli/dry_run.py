"""`--dry-run`: what a job would be, known from its rows alone; no weights are loaded."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from esurge_cli.feed import Feed
from esurge_cli.prepare import Outcome, PreparedRow, SkippedRow
from esurge_cli.rows.row import ErrorType, RowError
from runner.errors import UserError
from runner.progress import Progress

if TYPE_CHECKING:
    from runner.options import EnginePlan

_PATIENCE = 0.2
"""Seconds to wait for a row at a time."""

_ROWS_BETWEEN = 1000
_NUM_SHOWN = 3
_MAX_BARS = 16


@dataclass(slots=True)
class Census:
    """What is counted of the rows, in memory that does not grow with their number.

    `lengths` are the good rows' prompt tokens by their number; `longest` the tokens, prompt and output, of as many of
    the longest sequences as may run at once (`max_num_seqs`), as a heap. `examples` are the first errors of each kind.
    """

    max_num_seqs: int
    num_good: int = 0
    num_skipped: int = 0
    num_cut: int = 0
    errors: Counter[ErrorType] = field(default_factory=Counter)
    examples: dict[ErrorType, list[RowError]] = field(default_factory=lambda: defaultdict(list))
    lengths: Counter[int] = field(default_factory=Counter)
    longest: list[int] = field(default_factory=list)
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0

    @property
    def num_bad(self) -> int:
        return self.errors.total()

    @property
    def num_rows(self) -> int:
        return self.num_good + self.num_bad + self.num_skipped

    def add(self, outcome: Outcome) -> None:
        if isinstance(outcome, PreparedRow):
            self._add_good(outcome)
        elif isinstance(outcome, SkippedRow):
            self.num_skipped += 1
        elif isinstance(outcome, RowError):
            self.errors[outcome.type] += 1
            if len(self.examples[outcome.type]) < _NUM_SHOWN:
                self.examples[outcome.type].append(outcome)

    def _add_good(self, row: PreparedRow) -> None:
        length, params = len(row.prompt_token_ids), row.params
        self.num_good += 1
        self.num_cut += row.num_cut > 0
        self.lengths[length] += 1
        self.num_prompt_tokens += length * params.n
        self.num_output_tokens += params.max_tokens * params.n
        for _ in range(min(params.n, self.max_num_seqs)):
            if len(self.longest) < self.max_num_seqs:
                heapq.heappush(self.longest, length + params.max_tokens)
            else:
                heapq.heappushpop(self.longest, length + params.max_tokens)

    def percentile(self, percent: int) -> int:
        """The prompt tokens that this share of the good rows do not exceed; there must be a row."""
        rank = -(-percent * self.num_good // 100)
        for length in sorted(self.lengths):
            rank -= self.lengths[length]
            if rank <= 0:
                return length
        raise ValueError("there are no rows")


@dataclass(frozen=True, slots=True)
class Bar:
    """Good rows whose prompt has `first` to `last` tokens."""

    first: int
    last: int
    num_rows: int


def histogram(lengths: Counter[int]) -> list[Bar]:
    """Bars of one width, 1, 2 or 5 times a power of ten; what is far beyond the others is in the last one."""
    if not lengths:
        return []
    ordered = sorted(lengths)
    lowest, highest = ordered[0], ordered[-1]
    usual = _usual_highest(lengths)
    width = _round_up((usual - lowest) / (_MAX_BARS - 2))
    starts = range(lowest - lowest % width, usual + 1, width)
    counts = Counter(dict.fromkeys(starts, 0))
    for length, count in lengths.items():
        counts[min(length - length % width, starts[-1] + width)] += count
    return [
        Bar(start, start + width - 1 if start <= starts[-1] else highest, counts[start]) for start in sorted(counts)
    ]


def _usual_highest(lengths: Counter[int]) -> int:
    """The length that 99 % of the rows do not exceed."""
    left = -(-99 * lengths.total() // 100)
    for length in sorted(lengths):
        left -= lengths[length]
        if left <= 0:
            return length
    return 0


def _round_up(width: float) -> int:
    power = 1
    while True:
        for digit in (1, 2, 5):
            if digit * power >= width:
                return digit * power
        power *= 10


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens a second, prompts' (those found in the cache left out) and outputs' together, of an earlier run."""

    model: str | None
    tokens_per_second: float


def read_rate(path: Path) -> Rate:
    """The rate of a run's `--summary`, or the best of what `esurge bench --json` wrote. Raises UserError."""
    try:
        values = orjson.loads(path.read_bytes())
        rates = [_rate_of_bench(entry) for entry in values] if isinstance(values, list) else [_rate_of_run(values)]
        return max(rates, key=lambda rate: rate.tokens_per_second)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, LookupError, TypeError, ArithmeticError) as error:
        raise UserError(f"{path} is neither a run's summary nor what esurge bench --json writes") from error


def _rate_of_run(summary: dict[str, Any]) -> Rate:
    tokens = summary["tokens"]
    computed = tokens["prompt"] - tokens["cached"] + tokens["output"]
    return Rate(summary["settings"]["model"], computed / summary["seconds"]["generate"])


def _rate_of_bench(entry: dict[str, Any]) -> Rate:
    measured = entry["measured"]
    computed = measured["num_prompt_tokens"] - measured["num_cached_tokens"] + measured["num_output_tokens"]
    return Rate(entry["options"]["model"], computed / measured["seconds"])


def pages_at_once(census: Census, plan: EnginePlan) -> int:
    """What the longest sequences would hold if they ran together, each to its end, and shared nothing."""
    specs = [group.kv_cache_spec for group in plan.layout.groups.kv_cache_groups]
    by_length = Counter(census.longest)
    return sum(
        count * sum(spec.max_pages(length, plan.max_num_batched_tokens) for spec in specs)
        for length, count in by_length.items()
    )


def take_census(feed: Feed, max_num_seqs: int, progress: Progress) -> Census:
    """Count all rows of the feed. Task "Reading" counts them too."""
    census = Census(max_num_seqs)
    while not feed.is_exhausted:
        outcome = feed.take(_PATIENCE)
        if outcome is not None:
            census.add(outcome)
            if census.num_rows % _ROWS_BETWEEN == 1:
                progress("Reading", census.num_rows, None)
    progress("Reading", census.num_rows, census.num_rows)
    return census
