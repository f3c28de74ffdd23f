"""Which rows are taken: passed over, drawn, and limited, in this order; and ids that are given twice."""

from __future__ import annotations

import collections
import itertools

import pytest

from esurge_cli.rows.row import Row, RowError
from esurge_cli.rows.selection import Selection, watch_ids


def rows_of(count: int) -> list[Row | RowError]:
    return [Row(index, index + 1, None, "a") for index in range(count)]


def taken(selection: Selection, count: int = 10) -> list[int]:
    return [row.index for row in selection.of(rows_of(count))]


def test_rows_are_skipped_then_drawn_then_limited_and_keep_their_indices() -> None:
    assert taken(Selection()) == list(range(10))
    assert taken(Selection(skip=7)) == [7, 8, 9]
    assert taken(Selection(skip=2, limit=3)) == [2, 3, 4]
    drawn = taken(Selection(skip=4, sample=3, seed=1))
    assert len(drawn) == len(set(drawn)) == 3
    assert drawn == sorted(drawn)
    assert min(drawn) >= 4
    assert taken(Selection(skip=4, sample=3, limit=2, seed=1)) == drawn[:2]
    assert taken(Selection(skip=8, sample=5)) == [8, 9]
    assert taken(Selection(sample=0)) == taken(Selection(limit=0)) == taken(Selection(skip=11)) == []


def test_the_seed_decides_what_is_drawn() -> None:
    draws = [taken(Selection(sample=5, seed=seed), 1000) for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]


def test_every_set_of_rows_is_drawn_as_often() -> None:
    draws = collections.Counter(tuple(taken(Selection(sample=2, seed=seed), 5)) for seed in range(5000))
    assert set(draws) == set(itertools.combinations(range(5), 2))
    assert sum((count - 500) ** 2 / 500 for count in draws.values()) < 27.9  # chi squared, 9 degrees, p = 0.001


def test_rows_without_a_sample_are_not_read_ahead() -> None:
    endless = (Row(index, index + 1, None, "a") for index in itertools.count())
    assert [row.index for row in Selection(skip=3, limit=2).of(endless)] == [3, 4]


def test_the_count_of_a_selection() -> None:
    counts = [Selection(skip, sample, limit).count(10) for skip, sample, limit in
              ((0, None, None), (4, None, None), (20, None, None), (4, 3, None), (4, 3, 2), (4, 7, 9))]  # fmt: skip
    assert counts == [10, 6, 0, 3, 2, 6]


@pytest.mark.parametrize(
    ("ids", "warned"),
    [
        (["a", "b", None, None, 7, "7", -1, -2, ""], None),
        (["a", "b", "a", "b"], "the id 'a' is given twice (line 3)"),
        ([7, 8, 7], "the id 7 is given twice (line 3)"),
        (["", ""], "the id '' is given twice (line 2)"),
    ],
)
def test_an_id_given_twice_is_warned_of_once_and_all_rows_come(ids: list[str | int | None], warned: str | None) -> None:
    rows: list[Row | RowError] = [Row(index, index + 1, id_, "a") for index, id_ in enumerate(ids)]
    notes: list[str] = []
    assert list(watch_ids(rows, notes.append)) == rows
    assert len(notes) == (warned is not None)
    assert all(note.startswith(str(warned)) for note in notes)


def test_only_so_many_ids_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esurge_cli.rows.selection._MAX_IDS", 2)
    notes: list[str] = []
    rows: list[Row | RowError] = [Row(index, index + 1, id_, "a") for index, id_ in enumerate("abccb")]
    list(watch_ids(rows, notes.append))
    assert notes == ["the id 'b' is given twice (line 5); rows of one id are told apart by their index"]
