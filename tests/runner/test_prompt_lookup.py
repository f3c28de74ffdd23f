"""Prompt lookup."""

from __future__ import annotations

import numpy as np
import pytest

from runner.drafts import PromptLookup, StepCosts, look_up


def tokens(text: str) -> np.ndarray:
    return np.array([ord(c) for c in text], np.int32)


def propose(lookup: PromptLookup, text: np.ndarray) -> list[int]:
    return lookup.propose([("r", text)], is_decoding=False)["r"]


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
    assert len(propose(lookup, text)) == 4
    lookup.observe("r", 4, 0)
    widths = []
    for _ in range(64):
        drafts = propose(lookup, text)
        widths.append(len(drafts))
        if drafts:
            lookup.observe("r", len(drafts), 0)
    assert set(widths) == {0, 1}
    assert sum(widths) == 4


def test_a_probe_that_is_accepted_brings_drafts_back():
    lookup = PromptLookup(4)
    text = tokens("abcdabcd")
    lookup.observe("r", 4, 0)
    assert [len(propose(lookup, text)) for _ in range(16)] == [0] * 15 + [1]
    lookup.observe("r", 1, 1)
    assert len(propose(lookup, text)) == 4


def measured(**seconds: float) -> StepCosts:
    """Costs where a step of each bucket (b8=…) took so many seconds, after a first one that took long."""
    costs = StepCosts()
    for bucket, value in seconds.items():
        for taken in (100.0, value):
            costs.observe(int(bucket[1:]), taken)
    return costs


def test_what_is_accepted_is_counted_among_the_drafts_that_were_looked_at():
    """Of 4 drafts 2 right ones and a wrong one were looked at: 2/3, which weighs a fifth against 0.5 before."""
    lookup = PromptLookup(4)
    lookup.observe("r", 4, 2)
    assert lookup._records["r"].rate == pytest.approx(0.8 * 0.5 + 0.2 * 2 / 3)


def test_drafts_that_fit_into_the_bucket_are_free():
    assert measured(b8=1.0, b16=100.0).num_worth_it(6, [0.1, 0.1, 0.1]) == 2


@pytest.mark.parametrize(("seconds", "count"), [(1.35, 8), (1.38, 0)])
def test_a_larger_bucket_is_taken_where_it_gains_more_than_it_costs(seconds: float, count: int):
    """8 tokens in 1 s against 8 + 8 x 0.5 = 12 expected ones: a tenth better under 1.5 / 1.1 = 1.364 s."""
    assert measured(b8=1.0, b16=seconds).num_worth_it(8, [0.5] * 8) == count


def test_a_bucket_that_was_never_run_is_guessed_from_its_neighbour():
    """16 tokens are guessed to take 2^0.8 = 1.741 times as long as 8: a tenth better from 15.32 expected ones on."""
    assert measured(b8=1.0).num_worth_it(8, [0.92] * 8) == 8
    assert measured(b8=1.0).num_worth_it(8, [0.91] * 8) == 0


def test_the_likeliest_drafts_are_taken_first():
    """One place of 8 is free beside 7 requests: it goes to the one whose drafts were right before."""
    lookup = PromptLookup(1)
    lookup.observe("r3", 4, 4)
    lookup.costs.observe(8, 1.0)
    lookup.costs.observe(8, 1.0)
    drafts = lookup.propose([(f"r{i}", tokens("ababab")) for i in range(7)], is_decoding=True)
    assert {req_id for req_id, of_request in drafts.items() if of_request} == {"r3"}
