"""The loop: every row comes out once, with its text, however it is scheduled."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from fake_engine import EOS, A, EchoRunner, ids_of, make_engine

from esurge_cli.errors import RunFailed
from esurge_cli.feed import ListFeed
from esurge_cli.loop import Loop
from esurge_cli.options import EngineOptions
from esurge_cli.prepare import PreparedRow, SkippedRow
from esurge_cli.results.flat import FlatLines
from esurge_cli.results.result import KeptRow, Status
from esurge_cli.rows.row import ErrorType, Row, RowError
from esurge_cli.text.detokenizer import TokenTexts
from runner.errors import DeviceError
from scheduler import SamplingParams


class Lines:
    """A writer that keeps what it is given."""

    def __init__(self) -> None:
        self.rows: dict[int, list[dict[str, Any]]] = {}
        self.order: list[int] = []
        self.num_held = self.num_changed = self.num_dropped = 0
        self.kept: Counter[Status] = Counter()

    def admit(self, row: Row | RowError) -> Row | RowError:
        return row

    def write(self, index: int, lines: bytes, status: Status) -> None:
        assert index not in self.rows
        self.rows[index] = [json.loads(line) for line in lines.splitlines()]
        self.order.append(index)

    def flush(self) -> None:
        pass

    def close(self, is_complete: bool) -> None:
        pass

    def texts(self) -> list[list[str]]:
        return [[line["text"] for line in self.rows[index]] for index in sorted(self.rows)]


def prepared(index: int, text: str, **params: Any) -> PreparedRow:
    ids = ids_of(text)
    return PreparedRow(Row(index, index + 1, f"r{index}", text), ids, SamplingParams(**({"temperature": 0} | params)))


def make_loop(outcomes: list[Any], runner: EchoRunner | None = None, **options: Any) -> tuple[Loop, Lines]:
    engine = make_engine(runner)
    engine_options = EngineOptions(**{name: value for name, value in options.items() if name != "max_rows"})
    texts, writer = TokenTexts(engine.tokenizer), Lines()
    loop = Loop(
        engine.runner,  # type: ignore[arg-type]
        engine.scheduler(engine_options),
        ListFeed(outcomes),
        writer,
        FlatLines(texts.alone, return_token_ids=True),
        texts,
        engine.stop_token_ids,
        max_rows=options.get("max_rows", 100),
        is_async=engine_options.async_scheduling,
    )
    return loop, writer


def generate(outcomes: list[Any], runner: EchoRunner | None = None, **options: Any) -> Lines:
    loop, writer = make_loop(outcomes, runner, **options)
    assert loop.run()
    return writer


def one(text: str, **params: Any) -> dict[str, Any]:
    ((line,),) = generate([prepared(0, text, **params)]).rows.values()
    return line


def test_a_row_is_said_until_its_end() -> None:
    assert one("Hello") == {
        "id": "r0",
        "index": 0,
        "sample": 0,
        "text": "Hello",
        "finish_reason": "stop",
        "stop_reason": None,
        "usage": {"prompt_tokens": 5, "cached_tokens": 0, "completion_tokens": 6},
        "error": None,
        "token_ids": [*ids_of("Hello"), EOS],
    }


def test_max_tokens_cuts_it() -> None:
    line = one("Hello", max_tokens=3)
    assert (line["text"], line["finish_reason"], line["usage"]["completion_tokens"]) == ("Hel", "length", 3)


def test_no_tokens_give_empty_text() -> None:
    line = one("Hello", max_tokens=0)
    assert (line["text"], line["finish_reason"], line["token_ids"]) == ("", "length", [])


def test_a_stop_string_ends_it_and_is_cut_off() -> None:
    line = one("Hello STOP world", stop=["STOP", "rld"])
    assert (line["text"], line["finish_reason"], line["stop_reason"]) == ("Hello ", "stop", "STOP")
    assert line["token_ids"] == ids_of("Hello STOP")  # nothing was generated after it


def test_a_stop_string_in_the_last_token_wins_over_the_length() -> None:
    line = one("Hello", max_tokens=3, stop=["l"])
    assert (line["text"], line["finish_reason"], line["stop_reason"]) == ("He", "stop", "l")


def test_a_character_that_never_ends_is_shown_as_far_as_it_goes() -> None:
    assert one("a😀", max_tokens=3)["text"] == "a\ufffd"


def test_a_stop_token_is_no_text_but_a_token() -> None:
    (stop,) = ids_of("l")
    line = one("Hello", stop_token_ids=[stop])
    assert (line["text"], line["stop_reason"], line["token_ids"]) == ("He", stop, ids_of("Hel"))


def test_ignore_eos_goes_on() -> None:
    line = one("Hi", ignore_eos=True, max_tokens=5)
    assert (line["text"], line["finish_reason"]) == ("Hi", "length")
    assert line["token_ids"] == [*ids_of("Hi"), EOS, EOS, EOS]


def test_before_min_tokens_no_stop_string_counts() -> None:
    assert one("a.b.c.d", stop=["."], min_tokens=3)["text"] == "a.b"


def test_samples_of_a_row_come_out_together() -> None:
    writer = generate([prepared(0, "abc", n=3, temperature=1, seed=0, max_tokens=2)], EchoRunner(is_random=True))
    assert [line["sample"] for line in writer.rows[0]] == [0, 1, 2]
    assert writer.texts() == [["AB", "BC", "CD"]]


def test_errors_and_skipped_rows_take_their_place() -> None:
    error = RowError(1, 2, None, ErrorType.INVALID_ROW, "bad")
    loop, writer = make_loop([prepared(0, "a"), error, SkippedRow(2), prepared(3, "b")])
    assert loop.run()
    assert {index: [line["finish_reason"] for line in lines] for index, lines in writer.rows.items()} == {
        0: ["stop"],
        1: ["error"],
        2: [],
        3: ["stop"],
    }
    assert (loop.totals.num_good, loop.totals.num_failed, loop.totals.num_skipped) == (2, 1, 1)


def test_a_row_that_the_engine_cannot_run_is_an_error_and_its_samples_are_dropped() -> None:
    # Without chunked prefill a prompt must fit in a step of 32 tokens.
    outcomes = [prepared(0, "x" * 40, n=3), prepared(1, "a")]
    loop, writer = make_loop(outcomes, enable_chunked_prefill=False)
    assert loop.run()
    (line,) = writer.rows[0]
    assert line["error"]["type"] == "engine"
    assert "chunked prefill is off" in line["error"]["message"]
    assert writer.texts()[1] == ["a"]
    assert loop.totals.errors == {ErrorType.ENGINE: 1}


def test_no_rows_need_no_step() -> None:
    runner = EchoRunner()
    assert generate([], runner).rows == {}
    assert runner.num_steps == 0


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 5},
        {"enable_prefix_caching": False},
        {"scheduling_policy": "offline"},
        {"async_scheduling": True},
        {"async_scheduling": True, "max_num_batched_tokens": 3},
        {"max_rows": 1},
        {"max_rows": 3, "long_prefill_token_threshold": 2},
    ],
)
@pytest.mark.parametrize("num_pages", [65, 17])
def test_the_text_does_not_depend_on_how_it_is_scheduled(options: dict[str, Any], num_pages: int) -> None:
    """17 pages of 4 tokens hold one sequence of the full length only: rows are preempted."""
    texts = [f"row {i} " + "y" * (7 * i % 23) for i in range(20)]
    outcomes = [prepared(i, text, stop=["yyyyyyyyyyyyyyyyy"], max_tokens=30) for i, text in enumerate(texts)]
    writer = generate(outcomes, EchoRunner(num_pages=num_pages), **options)
    assert writer.texts() == [[text.split("y" * 17)[0]] for text in texts]


def test_rows_in_flight_are_bounded() -> None:
    runner = EchoRunner(max_num_seqs=4)
    loop, writer = make_loop([prepared(i, "abc") for i in range(50)], runner, max_rows=6)
    most = 0

    def count(step: int) -> None:
        nonlocal most
        most = max(most, len(loop._in_flight))

    runner.before_step = count
    assert loop.run()
    assert most == 6
    assert len(writer.rows) == 50


def test_no_more_rows_are_taken_while_too_many_are_held_back() -> None:
    loop, writer = make_loop([prepared(i, "abc") for i in range(9)])
    writer.num_held = 1 << 16
    loop._take_rows()
    assert loop._in_flight == {}


def test_prompts_of_a_budget_only_are_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esurge_cli.loop._MAX_PROMPT_TOKENS", 10)
    loop, _ = make_loop([prepared(i, "abcd") for i in range(9)])
    loop._take_rows()
    assert len(loop._in_flight) == 3


def test_stopping_leaves_the_rest() -> None:
    runner = EchoRunner()
    loop, writer = make_loop([prepared(0, "ab"), prepared(1, "x" * 40, max_tokens=20)], runner)
    loop._is_stopping = lambda: runner.num_steps >= 8
    assert not loop.run()
    assert writer.texts() == [["ab"]]


def test_rows_in_flight_end_where_no_more_may_begin() -> None:
    runner = EchoRunner()
    loop, writer = make_loop([prepared(i, "abcdef") for i in range(9)], runner, max_rows=2)
    loop._is_taking = lambda: runner.num_steps < 3
    assert not loop.run()
    assert writer.texts() == [["abcdef"], ["abcdef"]]


def test_what_ends_the_input_is_raised_once_the_rows_before_are_written() -> None:
    loop, writer = make_loop([prepared(0, "abc"), prepared(1, "d")])
    loop._feed.error = OSError("the disk is gone")  # type: ignore[misc]
    with pytest.raises(OSError, match="the disk is gone"):
        loop.run()
    assert writer.texts() == [["abc"], ["d"]]


def test_lines_of_an_earlier_run_are_written_as_they_are() -> None:
    loop, writer = make_loop([KeptRow(0, b'{"text": "kept"}\n', Status.GOOD), prepared(1, "a")])
    assert loop.run()
    assert writer.texts() == [["kept"], ["a"]]
    assert loop.totals.num_good == 1


def test_a_device_that_fails_fails_the_run() -> None:
    runner = EchoRunner()

    def fail(step: int) -> None:
        raise DeviceError("the device has no memory left")

    runner.before_step = fail
    loop, _ = make_loop([prepared(0, "abc")], runner)
    with pytest.raises(RunFailed, match="no memory left"):
        loop.run()


def test_totals() -> None:
    loop, _ = make_loop([prepared(0, "abcdefgh"), prepared(1, "abcdefgh", max_tokens=2)], EchoRunner(max_num_seqs=1))
    loop.run()
    totals = loop.totals
    assert (totals.num_good, totals.num_cut, totals.num_done) == (2, 1, 2)
    # 9 tokens, EOS counted, and 2; the second prompt finds the first page of the two in the cache
    assert (totals.num_prompt_tokens, totals.num_cached_tokens, totals.num_output_tokens) == (16, 4, 11)


def test_logprobs_are_of_the_tokens_that_are_given() -> None:
    line = one("Hello", logprobs=2)
    assert [entry["token_id"] for entry in line["logprobs"]] == line["token_ids"]
    assert line["logprobs"][0] == {
        "token_id": ids_of("H")[0],
        "logprob": -0.5,
        "rank": 1,
        "token": "H",
        "top": [
            {"token_id": ids_of("H")[0], "logprob": -0.5, "rank": 1, "token": "H"},
            {"token_id": ids_of("H")[0] + 1, "logprob": None, "rank": 2, "token": "I"},
        ],
    }
    assert line["logprobs"][-1]["token"] == "<eos>"


def test_a_random_row_depends_on_its_seed_and_sample_alone() -> None:
    rows = [prepared(i, "abc", n=2, temperature=1, seed=i, max_tokens=1) for i in range(6)]
    writer = generate(rows, EchoRunner(is_random=True), max_num_batched_tokens=4)
    assert writer.texts() == [[chr(65 + i), chr(66 + i)] for i in range(6)]
    assert ids_of("A")[0] == A


def test_a_second_loop_finds_the_runner_free() -> None:
    """As bench does: the runner is told of the last rows that ended by an empty step."""
    runner = EchoRunner()
    for _ in range(2):
        loop, writer = make_loop([prepared(0, "abc")], runner)
        assert loop.run()
        runner.run(loop._scheduler.schedule())
        assert writer.texts() == [["abc"]]
    assert runner._known == {}


def test_options_are_kept_apart() -> None:
    assert replace(EngineOptions(), seed=3) != EngineOptions()
