"""Rows read and prepared in threads: in order, bounded, and with what went wrong."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from fake_engine import wait_until

from esurge_cli.feed import ThreadedFeed
from esurge_cli.rows.row import Row


def rows(count: int, taken: list[int] | None = None) -> Iterator[Row]:
    for index in range(count):
        if taken is not None:
            taken.append(index)
        yield Row(index, index + 1, None, "x")


def same(batch: list[Any]) -> list[Any]:
    return batch


def take_all(feed: ThreadedFeed) -> list[int]:
    indices = []
    while not feed.is_exhausted:
        row = feed.take(0.05)
        if row is not None:
            indices.append(row.index)  # type: ignore[union-attr]
    return indices


def test_all_rows_come_in_order() -> None:
    assert take_all(ThreadedFeed(rows(1000), same)) == list(range(1000))


def test_an_empty_input_is_exhausted_at_once() -> None:
    assert take_all(ThreadedFeed(rows(0), same)) == []


def test_an_endless_input_is_read_only_so_far_ahead() -> None:
    taken: list[int] = []
    feed = ThreadedFeed(rows(10**9, taken), same)
    wait_until(lambda: len(taken) > 300)
    threading.Event().wait(0.1)
    assert len(taken) < 500
    feed.close()


def test_a_row_is_there_while_the_next_is_awaited() -> None:
    more = threading.Event()

    def slow() -> Iterator[Row]:
        yield Row(0, 1, None, "x")
        more.wait()
        yield Row(1, 2, None, "x")

    feed = ThreadedFeed(slow(), same)
    assert feed.take(5).index == 0  # type: ignore[union-attr]
    assert feed.take(0) is None
    assert not feed.is_exhausted
    more.set()
    assert feed.take(5).index == 1  # type: ignore[union-attr]


def test_rows_that_are_there_are_prepared_together() -> None:
    sizes: list[int] = []

    def prepare(batch: list[Any]) -> list[Any]:
        sizes.append(len(batch))
        return batch

    assert len(take_all(ThreadedFeed(rows(500), prepare))) == 500
    assert max(sizes) > 1
    assert max(sizes) <= 32


def test_what_the_reader_raises_comes_after_the_rows_before_it() -> None:
    def broken() -> Iterator[Row]:
        yield from rows(3)
        raise OSError("the disk is gone")

    feed = ThreadedFeed(broken(), same)
    assert [feed.take(5).index for _ in range(3)] == [0, 1, 2]  # type: ignore[union-attr]
    assert feed.take(5) is None
    assert feed.is_exhausted
    assert str(feed.error) == "the disk is gone"


def test_what_preparing_raises_ends_it() -> None:
    def prepare(batch: list[Any]) -> list[Any]:
        raise ZeroDivisionError

    feed = ThreadedFeed(rows(3), prepare)
    assert feed.take(5) is None
    assert isinstance(feed.error, ZeroDivisionError)


def test_a_closed_feed_lets_its_threads_end() -> None:
    before = threading.active_count()
    feed = ThreadedFeed(rows(10**9), same)
    feed.take(5)
    feed.close()
    assert feed.is_exhausted
    wait_until(lambda: threading.active_count() <= before)
