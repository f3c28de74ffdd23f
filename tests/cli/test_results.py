"""Lines, and the pipes they go to."""

from __future__ import annotations

import errno
import io
import json
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from esurge_cli.errors import OutputClosed, RunFailed
from esurge_cli.results.flat import FlatLines
from esurge_cli.results.lines import Origin
from esurge_cli.results.result import Result, Status, Usage
from esurge_cli.results.text import TextLines
from esurge_cli.results.writer import PipeWriter
from esurge_cli.rows.row import Chat, ErrorType, Row, RowError
from scheduler import FinishReason
from scheduler.output import TokenLogprobs


def result(row: Row, sample: int = 0) -> Result:
    return Result(row, sample, " Paris.", FinishReason.STOP, None, Usage(5, 0, 3), [1, 2, 3], None)


def line_of(lines: FlatLines, row: Row) -> dict[str, Any]:
    return json.loads(lines.of_results([result(row)]))


ROW = Row(0, 1, "q1", "The capital", {}, {"id": "q1", "prompt": "The capital", "topic": "geo", "text": "own"})


def test_a_line_is_what_the_contract_shows() -> None:
    assert FlatLines(str).of_results([result(ROW)]) == (
        b'{"id":"q1","index":0,"sample":0,"text":" Paris.","finish_reason":"stop","stop_reason":null,'
        b'"usage":{"prompt_tokens":5,"cached_tokens":0,"completion_tokens":3},"error":null}\n'
    )


def test_an_error_is_one_line_without_text() -> None:
    error = RowError(3, 7, None, ErrorType.INVALID_JSON, "not JSON: oh")
    assert json.loads(FlatLines(str, keep_fields=["topic"]).of_error(error)) == {
        "id": None,
        "index": 3,
        "sample": 0,
        "text": None,
        "finish_reason": "error",
        "stop_reason": None,
        "usage": {"prompt_tokens": 0, "cached_tokens": 0, "completion_tokens": 0},
        "error": {"type": "invalid_json", "message": "not JSON: oh", "line": 7},
        "topic": None,
    }


def test_more_fields_come_when_they_are_asked_for() -> None:
    plain = list(line_of(FlatLines(str), ROW))
    full = line_of(FlatLines(str, return_token_ids=True, include_prompt=True, keep_fields=["topic"]), ROW)
    assert list(full) == [*plain, "token_ids", "prompt", "topic"]
    assert (full["token_ids"], full["prompt"], full["topic"]) == ([1, 2, 3], "The capital", "geo")


def test_log_probabilities_of_the_prompt_begin_with_the_second_token() -> None:
    scored = replace(result(ROW), text="", token_ids=[], prompt_logprobs=[TokenLogprobs(7, -0.5, 2, [3], [-inf])])
    line = json.loads(FlatLines(str).of_results([scored]))
    assert line["prompt_logprobs"] == [
        None,
        {
            "token_id": 7,
            "logprob": -0.5,
            "rank": 2,
            "token": "7",
            "top": [{"token_id": 3, "logprob": None, "rank": 1, "token": "3"}],
        },
    ]


def test_a_prompt_is_shown_as_the_row_has_it() -> None:
    messages = [{"role": "user", "content": "Hi"}]
    lines = FlatLines(str, include_prompt=True)
    assert line_of(lines, Row(0, 1, None, Chat(messages)))["prompt"] == messages
    assert line_of(lines, Row(0, 1, None, [4, 5]))["prompt"] == [4, 5]


def test_all_fields_are_kept_those_that_the_output_has_under_another_name() -> None:
    line = line_of(FlatLines(str, keep_fields=["all"]), ROW)
    assert (line["id"], line["topic"], line["text"], line["input_text"]) == ("q1", "geo", " Paris.", "own")
    assert "input_id" not in line
    other_id = line_of(FlatLines(str, keep_fields=["all"], id_field="key"), ROW)
    assert other_id["input_id"] == "q1"


def test_a_field_that_a_row_lacks_is_null() -> None:
    assert line_of(FlatLines(str, keep_fields=["nope"]), ROW)["nope"] is None


def lines(index: int, count: int = 1) -> bytes:
    return b"".join(json.dumps({"index": index, "sample": sample}).encode() + b"\n" for sample in range(count))


ORDER = [2, 0, 5, 1, 4, 3]
SORTED = b"".join(lines(index, 2) for index in range(6))
AS_FINISHED = b"".join(lines(index, 2) for index in ORDER)


def admit(writer: PipeWriter, count: int) -> None:
    for index in range(count):
        writer.admit(Row(index, index + 1, None, "x"))


def write_all(writer: PipeWriter) -> None:
    admit(writer, 6)
    for index in ORDER:
        writer.write(index, lines(index, 2), Status.GOOD)
        writer.flush()
    writer.close(is_complete=True)


def test_a_pipe_holds_rows_back_until_those_before_them_are_out() -> None:
    file = io.BytesIO()
    writer = PipeWriter(file)
    seen = []
    admit(writer, 6)
    for index in ORDER:
        writer.write(index, lines(index, 2), Status.GOOD)
        writer.flush()
        seen.append((file.getvalue().count(b"\n") // 2, writer.num_held))
    assert seen == [(0, 1), (1, 1), (1, 2), (3, 1), (3, 2), (6, 0)]
    writer.close(is_complete=True)
    assert file.getvalue() == SORTED


def test_unordered_it_holds_nothing_back() -> None:
    file = io.BytesIO()
    write_all(PipeWriter(file, ordered=False))
    assert file.getvalue() == AS_FINISHED


def test_finished_rows_of_an_interrupted_run_come_out() -> None:
    file = io.BytesIO()
    writer = PipeWriter(file)
    admit(writer, 6)
    for index in (3, 1):
        writer.write(index, lines(index), Status.GOOD)
    writer.close(is_complete=False)
    assert file.getvalue() == lines(1) + lines(3)


class Broken(io.BytesIO):
    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error

    def write(self, data: Any) -> int:
        raise self.error


def test_a_reader_that_went_away_is_no_error() -> None:
    writer = PipeWriter(Broken(BrokenPipeError()))
    admit(writer, 1)
    writer.write(0, lines(0), Status.GOOD)
    with pytest.raises(OutputClosed):
        writer.flush()


def test_another_failure_is_one() -> None:
    writer = PipeWriter(Broken(OSError(errno.EIO, "Input/output error")))
    admit(writer, 1)
    writer.write(0, lines(0), Status.GOOD)
    with pytest.raises(RunFailed, match="Input/output error"):
        writer.flush()


def test_rows_that_are_passed_over_are_not_waited_for() -> None:
    file = io.BytesIO()
    writer = PipeWriter(file)
    for index in (10, 12):
        writer.admit(Row(index, index, None, "x"))
    writer.write(12, lines(12), Status.GOOD)
    writer.write(10, lines(10), Status.GOOD)
    writer.flush()
    assert file.getvalue() == lines(10) + lines(12)


def test_text_is_one_line_a_sample_whatever_is_in_it() -> None:
    odd = replace(result(ROW), text="a\nb\\n\r")
    assert TextLines().of_results([odd, result(ROW, 1)]) == rb"a\nb\\n\r" + b"\n Paris.\n"
    assert TextLines().of_error(RowError(3, 7, None, ErrorType.INVALID_JSON, "not JSON")) == b"\n"


def test_a_line_tells_whose_it_is() -> None:
    line = FlatLines(str).of_results([result(ROW)])
    assert FlatLines.read_origin(line) == Origin(0, "q1", Status.GOOD)
    with pytest.raises(ValueError, match="not a line of results"):
        FlatLines.read_origin(b'{"id": 1}')


def test_only_the_index_changes_when_a_row_moves() -> None:
    before = FlatLines(str).of_results([result(ROW), result(ROW, 1)])
    after = FlatLines(str).of_results([result(replace(ROW, index=9)), result(replace(ROW, index=9), 1)])
    assert FlatLines(str).renumbered(before, 9) == after
