"""Stop strings: found where the full text has them first, whatever the pieces."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esurge_cli.text.stops import StopFinder


def plain(text: str, stops: list[str]) -> tuple[int, str] | None:
    """The definition: of the first occurrences in the full text the first, of those together the shortest."""
    found = [(text.find(stop), len(stop), stop) for stop in stops if stop in text]
    return (min(found)[0], min(found)[2]) if found else None


def search(pieces: list[str], stops: list[str]) -> tuple[int, str] | None:
    finder = StopFinder(stops)
    for text in accumulate(pieces):
        found = finder.find(text, is_whole=False)
        if found is not None:
            return found
    return finder.find("".join(pieces), is_whole=True)


alphabet = st.text("ab😀̈", max_size=3)


@settings(max_examples=1500)
@given(st.lists(alphabet, max_size=10), st.lists(st.text("ab😀̈", min_size=1, max_size=4), min_size=1, max_size=4))
def test_it_is_the_plain_definition(pieces: list[str], stops: list[str]) -> None:
    assert search(pieces, stops) == plain("".join(pieces), stops)


@pytest.mark.parametrize(
    ("pieces", "stops", "found"),
    [
        (["one\n", "\ntwo"], ["\n\n"], (3, "\n\n")),
        (["xEN", "D y"], ["END"], (1, "END")),
        (["say STOP now"], ["STOP"], (4, "STOP")),
        (["ab", "c", "d"], ["abcd", "bc"], (0, "abcd")),
        (["ab", "c", "x"], ["abcd", "bc"], (1, "bc")),
        (["ab"], ["ab", "a"], (0, "a")),
        (["nothing"], ["STOP"], None),
        (["aa", "ab"], ["aab"], (1, "aab")),
    ],
)
def test_cases(pieces: list[str], stops: list[str], found: tuple[int, str] | None) -> None:
    assert search(pieces, stops) == found


def test_it_is_found_as_soon_as_it_is_whole() -> None:
    finder = StopFinder(["END"])
    assert finder.find("xEN", is_whole=False) is None
    assert finder.find("xEND", is_whole=False) == (1, "END")


def test_what_ends_in_the_part_to_skip_does_not_count() -> None:
    finder = StopFinder(["ab"])
    finder.skip("xabya")
    assert finder.find("xabyab", is_whole=False) == (4, "ab")
    finder = StopFinder(["ab"])
    finder.skip("xab")
    assert finder.find("xab", is_whole=True) is None
