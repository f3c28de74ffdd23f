"""Which of the input's rows are taken."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from esurge_cli.rows.row import Row, RowError

_MAX_IDS = 1_000_000


@dataclass(frozen=True, slots=True)
class Selection:
    """`skip` rows are passed over, then `sample` drawn from all others, then `limit` taken; None is all."""

    skip: int = 0
    sample: int | None = None
    limit: int | None = None
    seed: int = 0

    def of(self, rows: Iterable[Row | RowError]) -> Iterator[Row | RowError]:
        """In the order of the input, and with its indices."""
        rest = itertools.islice(rows, self.skip, None)
        drawn = rest if self.sample is None else _draw(rest, self.sample, random.Random(self.seed))
        return itertools.islice(drawn, self.limit)

    def count(self, num_rows: int) -> int:
        """How many are taken of so many."""
        rest = max(num_rows - self.skip, 0)
        return min([rest, *(bound for bound in (self.sample, self.limit) if bound is not None)])


def _draw(rows: Iterable[Row | RowError], count: int, source: random.Random) -> Iterator[Row | RowError]:
    """`count` rows, each set of so many equally likely (Vitter's algorithm R); no more are held."""
    drawn: list[Row | RowError] = []
    for number, row in enumerate(rows, start=1):
        if len(drawn) < count:
            drawn.append(row)
        elif (place := source.randrange(number)) < count:
            drawn[place] = row
    yield from sorted(drawn, key=lambda row: row.index)


def watch_ids(rows: Iterable[Row | RowError], warn: Callable[[str], None]) -> Iterator[Row | RowError]:
    """The rows; the first id that was there before is warned of, if it was among the first million."""
    rows = iter(rows)
    seen: set[int] = set()
    for row in rows:
        key = row.id if isinstance(row.id, int) else hash(row.id)
        if row.id is not None and key in seen:
            warn(f"the id {row.id!r} is given twice (line {row.line}); rows of one id are told apart by their index")
            yield row
            break
        if row.id is not None and len(seen) < _MAX_IDS:
            seen.add(key)
        yield row
    seen.clear()
    yield from rows
