"""From bytes to rows: every line comes out once, good or bad."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esurge_cli.errors import RunFailed
from esurge_cli.rows.fields import FieldNames, read_rows
from esurge_cli.rows.jsonl import read_jsonl
from esurge_cli.rows.row import Chat, ErrorType, Row, RowError
from esurge_cli.rows.source import Source
from runner.errors import UserError


def rows_of(data: bytes | str, **names: str) -> list[Row | RowError]:
    data = data.encode() if isinstance(data, str) else data
    return list(read_rows(read_jsonl(io.BytesIO(data)), FieldNames(**names)))


def row_of(fields: dict[str, Any], **names: str) -> Row | RowError:
    (row,) = rows_of(json.dumps(fields), **names)
    return row


def test_a_row_has_its_place_its_id_its_prompt_its_parameters_and_all_its_fields() -> None:
    fields = {"id": "q1", "prompt": "Hi", "max_tokens": 16, "temperature": 0, "topic": "x", "seed": 7}
    assert row_of(fields) == Row(0, 1, "q1", "Hi", {"max_tokens": 16, "temperature": 0, "seed": 7}, fields)


def test_the_three_kinds_of_prompt() -> None:
    messages = [{"role": "user", "content": "Hi"}]
    rows = rows_of('{"prompt": "Hi"}\n{"prompt": [1, 9906, 338]}\n' + json.dumps({"messages": messages}))
    assert [row.prompt for row in rows] == ["Hi", [1, 9906, 338], Chat(messages)]  # type: ignore[union-attr]


def test_lines_end_with_newline_alone_and_a_carriage_return_before_it_is_dropped() -> None:
    data = '\ufeff{"prompt": "a\u2028b\x85c"}\r\n\r\n   \n{"prompt": "d"}'
    rows = rows_of(data)
    assert [(row.index, row.line, row.prompt) for row in rows] == [(0, 1, "a\u2028b\x85c"), (1, 4, "d")]  # type: ignore[union-attr]


def test_ids_are_kept_as_they_are() -> None:
    rows = rows_of('{"prompt":"a","id":"7"}\n{"prompt":"a","id":7}\n{"prompt":"a","id":null}\n{"prompt":"a"}')
    assert [row.id for row in rows] == ["7", 7, None, None]


def test_whole_numbers_that_are_written_as_floats_are_ids() -> None:
    (row,) = rows_of('{"prompt":"a","id":7.0}')
    assert (row.id, type(row.id)) == (7, int)
    assert isinstance(row_of({"prompt": "a", "id": 2.0**53}), RowError)


def test_what_a_row_says_of_sampling_is_told_from_its_data() -> None:
    own = {"logprobs": True, "top_logprobs": 2, "max_completion_tokens": 3, "logit_bias": {}, "tool_choice": "auto"}
    row = row_of({"prompt": "a", "temperatur": 1, "tools": [], "chat_template_kwargs": {}} | own)
    assert isinstance(row, Row)
    assert row.sampling == own


@pytest.mark.parametrize(
    ("line", "type_", "message"),
    [
        (b"not json", ErrorType.INVALID_JSON, "not JSON"),
        (b'{"prompt": "a"', ErrorType.INVALID_JSON, "not JSON"),
        (b'{"prompt": "a", "temperature": NaN}', ErrorType.INVALID_JSON, "not JSON"),
        (b'{"prompt": "\xff\xfe"}', ErrorType.INVALID_JSON, "not JSON"),
        (b'{"prompt": "\\ud800"}', ErrorType.INVALID_JSON, "not JSON"),
        (b"[1, 2]", ErrorType.INVALID_ROW, "not a JSON object but an array"),
        (b"null", ErrorType.INVALID_ROW, "not a JSON object but null"),
        (b"12", ErrorType.INVALID_ROW, "not a JSON object but a number"),
        (b"{}", ErrorType.INVALID_ROW, "prompt or messages is missing"),
        (b'{"prompt": null}', ErrorType.INVALID_ROW, "prompt or messages is missing"),
        (b'{"prompt": 12}', ErrorType.INVALID_ROW, "prompt must be a string or a list of token ids"),
        (b'{"prompt": [1, true]}', ErrorType.INVALID_ROW, "prompt must be a string or a list of token ids"),
        (b'{"prompt": [1, 2.0]}', ErrorType.INVALID_ROW, "prompt must be a string or a list of token ids"),
        (b'{"prompt": "a", "messages": []}', ErrorType.INVALID_ROW, "both prompt and messages are given"),
        (b'{"messages": []}', ErrorType.INVALID_ROW, "messages must be a list of messages"),
        (b'{"messages": [{"content": "a"}]}', ErrorType.INVALID_ROW, "must be an object with a role"),
        (b'{"messages": [{"role": "user"}]}', ErrorType.INVALID_ROW, "content of each of messages must be a string"),
        (b'{"prompt": "a", "id": 1.5}', ErrorType.INVALID_ROW, "id must be a string or a whole number"),
        (b'{"prompt": "a", "id": true}', ErrorType.INVALID_ROW, "id must be a string or a whole number"),
    ],
)
def test_a_bad_line_is_an_error_with_its_number_and_the_others_are_fine(
    line: bytes, type_: ErrorType, message: str
) -> None:
    before, bad, after = rows_of(b'\n{"prompt": "a"}\n' + line + b'\n{"prompt": "b"}\n')
    assert isinstance(bad, RowError)
    assert (bad.index, bad.line, bad.type) == (1, 3, type_)
    assert message in bad.message
    assert isinstance(before, Row)
    assert isinstance(after, Row)
    assert (after.index, after.line) == (2, 4)


def test_an_error_keeps_the_rows_id_and_fields() -> None:
    row = row_of({"id": 5, "prompt": 1, "topic": "x"})
    assert isinstance(row, RowError)
    assert (row.id, row.data["topic"]) == (5, "x")


def test_fields_may_be_called_otherwise() -> None:
    fields = {
        "key": 3,
        "id": "no",
        "question": "Hi",
        "prompt": "no",
        "messages": [],
        "chat": [{"role": "a", "content": "b"}],
    }
    assert row_of(fields, prompt="question", id="key").prompt == "Hi"  # type: ignore[union-attr]
    assert row_of(fields, prompt="question", id="key").id == 3
    assert row_of(fields, messages="chat").prompt == Chat(fields["chat"])  # type: ignore[union-attr]
    missing = row_of({"prompt": "a"}, prompt="question")
    assert isinstance(missing, RowError)
    assert missing.message == "question is missing"


@given(
    st.lists(st.binary(max_size=40) | st.sampled_from([b'{"prompt": "a"}', b"{}", b" ", b"\xef\xbb\xbf"]), max_size=8)
)
def test_every_line_that_is_not_blank_is_one_row(lines: list[bytes]) -> None:
    data = b"\n".join(lines)
    pieces = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    rows = rows_of(data)
    assert [row.line for row in rows] == [number for number, piece in enumerate(pieces, 1) if piece.strip()]
    assert [row.index for row in rows] == list(range(len(rows)))


def test_files_follow_each_other_and_are_read_lazily(tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    first.write_text('{"prompt": "1"}\n{"prompt": "2"}')
    second.write_text('\n{"prompt": "3"}\n')
    source = Source([str(first), str(second)], FieldNames())
    assert [(row.index, row.line, row.prompt) for row in source.rows()] == [(0, 1, "1"), (1, 2, "2"), (2, 2, "3")]  # type: ignore[union-attr]
    assert source.count() == 4  # blank lines cannot be told without reading
    limited = Source([str(first), str(second)], FieldNames(), limit=1)
    rows = limited.rows()
    second.unlink()
    assert [row.index for row in rows] == [0]


def test_a_file_that_goes_away_ends_the_run_in_one_line(tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for path in (first, second):
        path.write_text('{"prompt": "1"}\n')
    rows = Source([str(first), str(second)], FieldNames()).rows()
    next(rows)
    second.unlink()
    with pytest.raises(RunFailed, match=r"b\.jsonl"):
        next(rows)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [([], "name the input"), (["nowhere.jsonl"], "nowhere.jsonl does not exist"), (["-", "-"], "only once")],
)
def test_what_cannot_be_read_is_said_at_once(inputs: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Source(inputs, FieldNames())


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a folder"):
        Source([str(tmp_path)], FieldNames())


def test_standard_input_has_no_count() -> None:
    assert Source(["-"], FieldNames()).count() is None
