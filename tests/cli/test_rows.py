"""From bytes to rows: every line comes out once, good or bad."""

from __future__ import annotations

import codecs
import io
import itertools
import json
import tracemalloc
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esurge_cli.rows.fields import FieldNames, read_rows
from esurge_cli.rows.jsonl import read_jsonl
from esurge_cli.rows.lines import read_lines
from esurge_cli.rows.row import Chat, ErrorType, Row, RowError

BOM = codecs.BOM_UTF8


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
        (b'{"prompt": "\\ud800"}', ErrorType.INVALID_JSON, "not JSON: half of a character"),
        (b'{"prompt": "\\ude00\\ud83d"}', ErrorType.INVALID_JSON, "not JSON: half of a character"),
        (b'{"a": ' + 5000 * b"[" + 5000 * b"]" + b', "b": "\\ud800"}', ErrorType.INVALID_JSON, "not JSON"),
        (b'{"prompt": "\\ud800", "top_p": Infinity}', ErrorType.INVALID_JSON, "not JSON"),
        (b'{"prompt": "a", "a": 1e999}', ErrorType.INVALID_JSON, "not JSON"),
        (b'{"prompt": "a"}{"prompt": "b"}', ErrorType.INVALID_JSON, "not JSON"),
        (b'{"prompt": "a\x00"}', ErrorType.INVALID_JSON, "not JSON"),
        (b'{"prompt": "a\rb"}', ErrorType.INVALID_JSON, "not JSON"),
        (b'{"a": ' + 100_000 * b"[" + 100_000 * b"]" + b"}", ErrorType.INVALID_JSON, "depth limit"),
        (b'{"a": ' + 128 * b"[" + 128 * b"]" + b"}", ErrorType.INVALID_ROW, "nested deeper than 128 levels"),
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
    pieces = data.split(b"\n")
    rows = rows_of(data)
    assert [row.line for row in rows] == [
        number for number, piece in enumerate(pieces, 1) if piece.removeprefix(BOM).strip()
    ]
    assert [row.index for row in rows] == list(range(len(rows)))


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (rb"\ud83d\ude00", "\U0001f600"),
        (b"\xed\xa0\xbd\xed\xb8\x80", "\U0001f600"),  # CESU-8
        (b"\\ud83d\xed\xb8\x80", "\U0001f600"),
        (rb"caf\udcc3\udca9", "caf\xe9"),  # what json.dumps makes of bytes that Python carried through
        (rb"\u0000\u2028", "\0\u2028"),
        (rb"\\ud83d", "\\ud83d"),
    ],
)
def test_surrogates_are_repaired_where_they_can_be(written: bytes, text: str) -> None:
    (row,) = rows_of(b'{"prompt": "' + written + b'", "max_tokens": 5}')
    assert (row.prompt, row.sampling) == (text, {"max_tokens": 5})  # type: ignore[union-attr]


def test_a_repaired_row_has_the_numbers_that_any_other_has() -> None:
    numbers = b'"a": 18446744073709551615, "b": -9223372036854775808, "c": 1' + 30 * b"0" + b', "d": 1e3'
    plain, repaired = rows_of(b'{"prompt": "x", ' + numbers + b'}\n{"prompt": "\\udcc3\\udca9", ' + numbers + b"}")
    assert (
        {k: v for k, v in plain.data.items() if k != "prompt"}
        == {k: v for k, v in repaired.data.items() if k != "prompt"}
        == {"a": 2**64 - 1, "b": -(2**63), "c": 1e30, "d": 1000.0}
    )


def test_the_last_of_equal_keys_wins_as_in_pythons_json() -> None:
    line = '{"prompt": "a", "prompt": "b"}'
    (row,) = rows_of(line)
    assert row.data == json.loads(line)


def test_what_is_nested_as_deep_as_allowed_can_be_written_again() -> None:
    (row,) = rows_of(b'{"prompt": "a", "x": ' + 127 * b"[" + 127 * b"]" + b"}")
    assert json.loads(orjson.dumps({"a": {"b": row.data}}))["a"]["b"]["prompt"] == "a"


class Trickle:
    """A file that gives a few bytes at a time."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        self._data = io.BytesIO(data)
        self._sizes = itertools.cycle(sizes)

    def read1(self, size: int = -1) -> bytes:
        return self._data.read(next(self._sizes))


@given(
    st.lists(st.sampled_from([b"a", b"\n", b"\r", b"bcd", b"\n\n", 9 * b"e"]), max_size=20).map(b"".join),
    st.integers(1, 12),
    st.lists(st.integers(1, 7), min_size=1, max_size=4),
)
def test_lines_are_the_same_however_the_bytes_come_and_long_ones_are_none(
    data: bytes, max_bytes: int, sizes: list[int]
) -> None:
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    expected = [line if len(line) <= max_bytes else None for line in lines]
    assert list(read_lines(Trickle(data, sizes), max_bytes)) == expected


def test_a_long_line_is_an_error_row_and_is_never_held() -> None:
    class Endless:
        """A gigabyte without a line end, then a row."""

        left = 4096

        def read1(self, size: int = -1) -> bytes:
            self.left -= 1
            return block if self.left > 0 else b'\n{"prompt": "b"}\n' if self.left == 0 else b""

    block = b"x" * (1 << 18)
    tracemalloc.start()
    long, after = read_rows(read_jsonl(read_lines(Endless(), 1 << 20), 1 << 20), FieldNames())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(long, RowError)
    assert (long.index, long.line, long.type) == (0, 1, ErrorType.LINE_TOO_LONG)
    assert "longer than 1 MiB; --max-line-bytes allows more" in long.message
    assert (after.index, after.line) == (1, 2)
    assert peak < 4 << 20
