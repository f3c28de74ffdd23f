"""Prompt lookup."""

from __future__ import annotations

import numpy as np

from runner.drafts import PromptLookup, look_up


def tokens(text: str) -> np.ndarray:
    return np.array([ord(c) for c in text], np.int32)


def said(drafts: list[int]) -> str:
    return "".join(map(chr, drafts))


def test_what_followed_the_longest_match_is_proposed():
    assert said(look_up(tokens("xbcd1 abcd2 abcd"), 2)) == "2 "


def test_the_latest_match_wins():
    assert said(look_up(tokens("ab1 ab2 ab3 ab"), 3)) == "3 a"


def test_a_short_period_is_continued_for_the_whole_width():
    assert said(look_up(tokens("aaaaaaaaaa"), 4)) == "aaaa"
    assert said(look_up(tokens("abababababab"), 5)) == "ababa"


def test_a_match_too_near_the_end_gives_what_there_is():
    assert said(look_up(tokens("xyxy"), 8)) == "xy"


def test_nothing_repeats():
    assert look_up(tokens("abcdefg"), 4) == []
    assert look_up(tokens("a"), 4) == []
    assert look_up(tokens(""), 4) == []


def test_a_request_whose_drafts_fail_is_only_probed():
    lookup = PromptLookup(4)
    text = tokens("abcdabcd")
    assert len(lookup.propose("r", text)) == 4
    lookup.observe("r", 4, 0)
    widths = []
    for _ in range(64):
        drafts = lookup.propose("r", text)
        widths.append(len(drafts))
        if drafts:
            lookup.observe("r", len(drafts), 0)
    assert set(widths) == {0, 1}
    assert sum(widths) == 4


def test_a_probe_that_is_accepted_brings_drafts_back():
    lookup = PromptLookup(4)
    text = tokens("abcdabcd")
    lookup.observe("r", 4, 0)
    assert [len(lookup.propose("r", text)) for _ in range(16)] == [0] * 15 + [1]
    lookup.observe("r", 1, 1)
    assert len(lookup.propose("r", text)) == 4
