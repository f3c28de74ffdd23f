"""From bytes of each kind but JSON lines to rows."""

from __future__ import annotations

import codecs
import csv
import datetime
import decimal
import gzip
import io
import itertools
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from esurge_cli.errors import RunFailed
from esurge_cli.rows.csv_table import read_csv
from esurge_cli.rows.fields import FieldNames, read_rows
from esurge_cli.rows.files import Files
from esurge_cli.rows.json_values import read_json
from esurge_cli.rows.kinds import InputKind
from esurge_cli.rows.lines import read_lines
from esurge_cli.rows.row import Chat, ErrorType, Record, Row, RowError, RowFault
from esurge_cli.rows.source import Source
from esurge_cli.rows.stream import Stream
from esurge_cli.text.templates import PromptTemplate
from runner.errors import UserError

Rows = list[Row | RowError]


def rows_of(folder: Path, name: str, data: bytes | str, **names: str) -> Rows:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return list(source_of(path, **names).rows())


def source_of(path: Path, kind: InputKind | None = None, **names: str) -> Source:
    fields = FieldNames(**names)
    return Source(Files([str(path)], fields, kind), fields)


def outcomes(rows: Rows) -> list[tuple[int, Any]]:
    """The line of each, with its prompt or message."""
    return [(row.line, row.prompt if isinstance(row, Row) else row.message) for row in rows]


# Text


def test_a_line_of_text_is_a_prompt_with_its_spaces(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "a.txt", b"\xef\xbb\xbf first \r\n\r\n  \n{no json\n\xff\nlast\x00\xe2\x80\xa8x")
    assert outcomes(rows) == [
        (1, " first "),
        (4, "{no json"),
        (5, "not UTF-8: invalid start byte at byte 0"),
        (6, "last\0\u2028x"),
    ]
    assert source_of(tmp_path / "a.txt").count() == 6


def test_a_line_of_text_is_the_field_that_the_prompt_is_called(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, "a.txt", "Hi", prompt="question")
    assert (row.prompt, row.data) == ("Hi", {"question": "Hi"})  # type: ignore[union-attr]


# CSV


def test_a_csv_row_has_the_headers_fields_and_typed_parameters(tmp_path: Path) -> None:
    text = (
        "\ufeffid,prompt,max_tokens,temperature,stop,ignore_eos,topic\r\n"
        '7,"Say ""hi"",\nplease",16,0.5,"[""a"", ""b""]",true,01\r\n'
        "\r\n"
        ",Hi,,,5,,\r\n"
    )
    first, second = rows_of(tmp_path, "a.csv", text)
    assert first.data == {
        "id": "7",
        "prompt": 'Say "hi",\nplease',
        "max_tokens": 16,
        "temperature": 0.5,
        "stop": ["a", "b"],
        "ignore_eos": True,
        "topic": "01",
    }
    assert (first.line, second.line, second.id, second.data["stop"], second.data["max_tokens"]) == (
        2,
        5,
        None,
        "5",
        None,
    )


def test_tabs_divide_tsv(tmp_path: Path) -> None:
    assert outcomes(rows_of(tmp_path, "a.tsv", "prompt\tx\na, b\t1\n")) == [(2, "a, b")]


def test_messages_of_a_csv_are_json(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    buffer = io.StringIO()
    csv.writer(buffer).writerows([["chat"], [json.dumps(messages)], ["Hi"]])
    good, bad = rows_of(tmp_path, "a.csv", buffer.getvalue(), messages="chat")
    assert good.prompt == Chat(messages)  # type: ignore[union-attr]
    assert isinstance(bad, RowError)


def test_bad_records_of_a_csv_are_errors_and_the_others_are_fine(tmp_path: Path) -> None:
    data = b'prompt,x\na,1\nb\nc,1,2\nd\xff,1\n"e"f,1\ng\rh,1\n   \ni,1\n"open,1\nj,2\n'
    assert [(row.line, isinstance(row, Row)) for row in rows_of(tmp_path, "a.csv", data)] == [
        (2, True),
        (3, False),
        (4, False),
        (5, False),
        (6, False),
        (7, False),
        (9, True),
        (10, False),
    ]


def test_a_long_record_is_an_error_to_its_end_and_those_within_the_limit_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    a, b, c = 150_000 * "a", 300_000 * "b", 90_000 * "c"
    path.write_text(f'prompt,x\n{a},1\n{b},1\n"{c}\n{c}\n{c}\n",1\nd,1\n"{c}\n{c}\n{c}\n')
    names = FieldNames()
    rows = list(Source(Files([str(path)], names, max_line_bytes=200_000), names).rows())
    assert [(row.line, row.type.value if isinstance(row, RowError) else row.prompt) for row in rows] == [
        (2, a),
        (3, "line_too_long"),
        (4, "line_too_long"),
        (8, "d"),
        (9, "line_too_long"),
    ]


@pytest.mark.parametrize(
    ("header", "names", "message"),
    [
        ("prompt,x,prompt", {}, r"a\.csv has more than one column prompt"),
        ("question,x", {}, r"a\.csv has no column prompt or messages.*its columns are question, x"),
        ("prompt,x", {"prompt": "q"}, r"a\.csv has no column q \(--prompt-field\); its columns are prompt, x"),
        ("prompt,x", {"messages": "q"}, r"no column q \(--messages-field\); its columns are prompt, x"),
        ("prompt,x", {"id": "key"}, r"no column key \(--id-field\); its columns are prompt, x"),
        ('"prompt,x', {}, r"a\.csv has no header that can be read"),
    ],
)
def test_columns_that_are_missing_or_twice_there_are_said(
    tmp_path: Path, header: str, names: dict[str, str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        rows_of(tmp_path, "a.csv", header + "\na,b\n", **names)


def test_with_a_template_no_column_has_to_be_the_prompt(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("question,hint\nWho,you\n")
    names = FieldNames(template=PromptTemplate("{{ question }}? {{ hint }}"))
    rows = list(Source(Files([str(tmp_path / "a.csv")], names), names).rows())
    assert outcomes(rows) == [(2, "Who? you")]


def test_an_empty_csv_has_no_rows(tmp_path: Path) -> None:
    assert rows_of(tmp_path, "a.csv", "") == rows_of(tmp_path, "b.csv", "prompt\n") == []


@given(
    st.lists(
        st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), min_size=2, max_size=2), max_size=6
    )
)
def test_what_pythons_csv_writes_is_read_again(cells: list[list[str]]) -> None:
    buffer = io.StringIO()
    csv.writer(buffer).writerows([["prompt", "x"], *cells])
    lines = read_lines(io.BytesIO(buffer.getvalue().encode()), 1000)
    records = list(read_csv(lines, "a.csv", ",", FieldNames(), 1000))
    assert [record.fields for record in records] == [dict(zip(("prompt", "x"), pair, strict=True)) for pair in cells]


# JSON


def json_records(data: bytes, max_bytes: int = 1 << 20, sizes: tuple[int, ...] = (1 << 20,)) -> list[Record]:
    class Pieces:
        def __init__(self) -> None:
            self._data = io.BytesIO(data)
            self._sizes = itertools.cycle(sizes)

        def read(self, size: int = -1) -> bytes:
            return self._data.read(next(self._sizes))

        def close(self) -> None:
            pass

    return list(read_json(Stream("a.json", Pieces()), max_bytes))


def plain(records: list[Record]) -> list[tuple[int, Any]]:
    return [(r.line, r.fields.type.value if isinstance(r.fields, RowFault) else r.fields) for r in records]


JSON_FILES = [
    (b"", []),
    (b"[]", []),
    (b" [ ] ", []),
    (b'\xef\xbb\xbf[{"a": 1}]', [(1, {"a": 1})]),
    (
        b'[\n {"a": 1},\n {"a": [1, {"b": "],}\\""}],\n  "c": {}}\n]\n',
        [(2, {"a": 1}), (3, {"a": [1, {"b": '],}"'}], "c": {}})],
    ),
    (b'{\n"a": 1}', [(1, {"a": 1})]),
    (b'{"a": {"b": 1}}\n\n{"a": 2}{"a": 3}', [(1, {"a": {"b": 1}}), (3, {"a": 2}), (3, {"a": 3})]),
    (b'[{"a": 1}, {"a": NaN}, {"a" 2}, 3, "x", [], {"a": "\\ud800"}, {"a": 4},]', None),
    (b'[{"a": 1} {"a": 2}, {"a": 3}]', [(1, {"a": 1}), (1, {"a": 2}), (1, {"a": 3})]),
    (b'[{"a": 1}]\n[{"a": 2}]', [(1, {"a": 1}), (2, {"a": 2})]),
    (b'[{"a": 1}] {"a": 2}', [(1, {"a": 1}), (1, {"a": 2})]),
    (b'[{"a": 1}]\ngarbage', [(1, {"a": 1}), (2, "invalid_json")]),
    (b"garbage", [(1, "invalid_json")]),
    (b'"a string"', [(1, "invalid_row")]),
    (b'{"a": "\\\\"}', [(1, {"a": "\\"})]),
    (b'} {"a": 1}', [(1, "invalid_json"), (1, {"a": 1})]),
]


@pytest.mark.parametrize("sizes", [(1 << 20,), (1,), (3,), (7, 2)])
@pytest.mark.parametrize(("data", "expected"), JSON_FILES)
def test_elements_are_the_same_however_the_bytes_come(
    data: bytes, expected: list[tuple[int, Any]] | None, sizes: tuple[int, ...]
) -> None:
    if expected is None:
        bad = ["invalid_json", "invalid_json", "invalid_row", "invalid_row", "invalid_row", "invalid_json"]
        expected = [(1, {"a": 1}), *((1, type_) for type_ in bad), (1, {"a": 4})]
    assert plain(json_records(data, sizes=sizes)) == expected


@pytest.mark.parametrize("data", [b'[{"a": 1}, {"a": 2}', b'[{"a": 1}, {"a": "2}]', b'[{"a": 1},'])
@pytest.mark.parametrize("size", [1, 1000])
def test_a_file_that_ends_inside_ends_the_run_after_the_rows_before(data: bytes, size: int) -> None:
    records = read_json(Stream("a.json", io.BytesIO(data)), 100)
    assert next(records).fields == {"a": 1}
    with pytest.raises(RunFailed, match=r"a\.json cannot be read to its end: it ends in the midst of an array"):
        list(records)


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3).map(ascii), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.lists(st.dictionaries(st.text(max_size=4).map(ascii), JSON_VALUES, max_size=3), max_size=5),
    st.sampled_from([None, 2]),
    st.booleans(),
    st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple),
)
@example([{"a": '\\"[{,'}], None, True, (1,))
def test_what_pythons_json_writes_is_read_again(
    values: list[dict[str, Any]], indent: int | None, ensure_ascii: bool, sizes: tuple[int, ...]
) -> None:
    array = json.dumps(values, indent=indent, ensure_ascii=ensure_ascii).encode()
    assert [record.fields for record in json_records(array, sizes=sizes)] == values
    joined = "\n".join(json.dumps(value, indent=indent) for value in values).encode()
    assert [record.fields for record in json_records(joined, sizes=sizes)] == values


def test_a_long_element_is_an_error_and_is_never_held() -> None:
    class Long:
        def __init__(self) -> None:
            self._pieces = iter([b'[{"a": 1},\n{"a": "', *(1024 * [block]), b'"},\n{"a": 2}]'])

        def read(self, size: int = -1) -> bytes:
            return next(self._pieces, b"")

        def close(self) -> None:
            pass

    block = b"x" * (1 << 18)
    tracemalloc.start()
    records = list(read_json(Stream("a.json", Long()), 1 << 20))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert plain(records) == [(1, {"a": 1}), (2, "line_too_long"), (3, {"a": 2})]
    assert peak < 4 << 20


def test_a_json_file_may_hold_an_array_an_object_or_json_lines(tmp_path: Path) -> None:
    for name, data in {
        "array.json": '[{"prompt": "a"},\n{"prompt": "b"}]',
        "lines.json": '{"prompt": "a"}\n{"prompt": "b"}\n',
        "broken_line.json": '{"prompt": "a"}\nbroken\n{"prompt": "b"}\n',
        "objects.json": '{\n"prompt": "a"\n}\n{\n"prompt": "b"}',
    }.items():
        rows = [row for row in rows_of(tmp_path, name, data) if isinstance(row, Row)]
        assert [row.prompt for row in rows] == ["a", "b"], name


# OpenAI


def request(**changes: Any) -> dict[str, Any]:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_completion_tokens": 8}
    values = {"custom_id": "r1", "method": "POST", "url": "/v1/chat/completions", "body": body} | changes
    return {name: value for name, value in values.items() if value is not None}


def test_requests_are_rows_with_their_custom_ids(tmp_path: Path) -> None:
    plain_body = {"model": "m", "prompt": "Once", "max_tokens": 4, "id": "not this"}
    lines = [request(), request(custom_id="r2", url="/v1/completions", body=plain_body)]
    path = tmp_path / "batch.jsonl"
    chat, completion = rows_of(tmp_path, path.name, "\n".join(map(json.dumps, lines)))
    assert (chat.id, chat.prompt, chat.sampling) == (  # type: ignore[union-attr]
        "r1",
        Chat([{"role": "user", "content": "Hi"}]),
        {"max_completion_tokens": 8},
    )
    assert (completion.id, completion.prompt, completion.data["model"]) == ("r2", "Once", "m")  # type: ignore[union-attr]
    assert source_of(path).kind is InputKind.OPENAI


@pytest.mark.parametrize(
    ("changes", "id_", "message"),
    [
        ({"url": "/v1/embeddings"}, "r1", "url must be /v1/chat/completions or /v1/completions"),
        ({"url": 5}, "r1", "url must be"),
        ({"url": None}, "r1", "url must be"),
        ({"method": "GET"}, "r1", 'method must be "POST"'),
        ({"method": None}, "r1", 'method must be "POST"'),
        ({"body": None}, "r1", "body must be an object"),
        ({"body": "{}"}, "r1", "body must be an object"),
        ({"body": {}}, "r1", "the body has no messages"),
        ({"body": {"prompt": "a"}}, "r1", "the body has no messages"),
        ({"url": "/v1/completions"}, "r1", "the body has no prompt"),
        ({"custom_id": 7}, None, "custom_id must be a string"),
        ({"custom_id": None}, None, "custom_id must be a string"),
    ],
)
def test_a_bad_request_is_an_error_with_its_custom_id(
    tmp_path: Path, changes: dict[str, Any], id_: str | None, message: str
) -> None:
    _, bad, after = rows_of(
        tmp_path, "batch.jsonl", "\n".join(map(json.dumps, [request(), request(**changes), request()]))
    )
    assert isinstance(bad, RowError)
    assert (bad.id, bad.type, bad.line) == (id_, ErrorType.INVALID_ROW, 2)
    assert message in bad.message
    assert isinstance(after, Row)


# Parquet


def write_parquet(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(columns), path, **options)
    return path


def test_nested_columns_of_parquet_are_lists_and_objects(tmp_path: Path) -> None:
    messages = [[{"role": "user", "content": "Hi"}], [{"role": "user", "content": "Ho"}]]
    path = write_parquet(tmp_path / "a.parquet", {"id": [1, None], "messages": messages, "temperature": [0.5, None]})
    rows = list(source_of(path).rows())
    assert [(row.line, row.id, row.prompt) for row in rows] == [(1, 1, Chat(messages[0])), (2, None, Chat(messages[1]))]  # type: ignore[union-attr]
    assert rows[0].sampling == {"temperature": 0.5}  # type: ignore[union-attr]
    assert source_of(path).count() == 2


def test_values_that_json_has_not_become_text(tmp_path: Path) -> None:
    day = datetime.datetime(2024, 2, 29, 1, 2, 3)
    path = write_parquet(
        tmp_path / "a.parquet",
        {
            "prompt": [b"bytes"],
            "when": pa.array([day], pa.timestamp("ns")),
            "day": [day.date()],
            "price": [decimal.Decimal("1.10")],
            "raw": [b"\xff\x00"],
            "took": [datetime.timedelta(seconds=1.5)],
            "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
        },
    )
    (row,) = source_of(path).rows()
    assert row.data == {
        "prompt": "bytes",
        "when": "2024-02-29T01:02:03",
        "day": "2024-02-29",
        "price": "1.10",
        "raw": "/wA=",
        "took": 1.5,
        "map": [["k", 1]],
    }


def test_columns_of_parquet_are_listed(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", {"question": ["a"], "x": [1]})
    with pytest.raises(UserError, match=r"no column q \(--prompt-field\); its columns are question, x"):
        list(source_of(path, prompt="q").rows())


def test_a_damaged_parquet_ends_the_run(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", {"prompt": [f"p{i}" for i in range(20_000)]}, row_group_size=5_000)
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(RunFailed, match=r"a\.parquet cannot be read to its end"):
        list(source_of(path).rows())
    damaged = bytearray(data)
    middle = len(data) * 6 // 10
    damaged[middle : middle + 2000] = bytes(2000)
    path.write_bytes(damaged)
    seen = []
    with pytest.raises(RunFailed, match=r"a\.parquet cannot be read to its end"):
        for row in source_of(path).rows():
            seen.append(row.prompt)  # type: ignore[union-attr]
    assert len(seen) >= 5_000
    assert seen == [f"p{i}" for i in range(len(seen))]


def test_a_page_of_parquet_whose_checksum_is_wrong_ends_the_run(tmp_path: Path) -> None:
    path = write_parquet(
        tmp_path / "a.parquet",
        {"prompt": ["right"]},
        write_page_checksum=True,
        compression="none",
        use_dictionary=False,
        write_statistics=False,
    )
    path.write_bytes(path.read_bytes().replace(b"right", b"wrong", 1))
    with pytest.raises(RunFailed, match=r"a\.parquet cannot be read to its end: .*CRC"):
        list(source_of(path).rows())


def test_a_row_group_of_parquet_is_never_held_as_a_whole(tmp_path: Path) -> None:
    prompts = [f"{i:01000}" for i in range(32_000)]
    path = write_parquet(tmp_path / "a.parquet", {"prompt": prompts}, compression="none", use_dictionary=False)
    before = pa.total_allocated_bytes()
    held = [pa.total_allocated_bytes() - before for _ in source_of(path).rows()]
    assert len(held) == 32_000
    assert max(held) < 8 << 20


def test_a_compressed_parquet_and_one_without_a_name_are_read(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", {"prompt": ["a", "b"]})
    (tmp_path / "b.parquet.gz").write_bytes(gzip.compress(path.read_bytes()))
    (tmp_path / "c").write_bytes(path.read_bytes())
    for name in ("b.parquet.gz", "c"):
        assert outcomes(list(source_of(tmp_path / name).rows())) == [(1, "a"), (2, "b")]


# Anything


@settings(max_examples=60)
@given(st.binary(max_size=200) | st.text(alphabet='[]{}",:\\\n\rab1 \ufeff', max_size=60).map(str.encode))
@pytest.mark.parametrize("kind", [kind for kind in InputKind if kind is not InputKind.DATASET] + [None])
def test_nothing_but_a_users_error_or_a_failed_run_escapes_whatever_the_bytes(
    kind: InputKind | None, tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(data)
    source = source_of(path, kind)
    try:
        rows = list(source.rows())
    except (UserError, RunFailed):
        return
    assert [row.index for row in rows] == list(range(len(rows)))
    if kind in (InputKind.JSONL, InputKind.OPENAI, InputKind.TEXT) and b"\x1f\x8b" not in data:
        is_text = kind is InputKind.TEXT  # where a byte order mark further on is part of a prompt
        lines = data.removeprefix(codecs.BOM_UTF8).split(b"\n")
        kept = [line if is_text else line.removeprefix(codecs.BOM_UTF8) for line in lines]
        assert [row.line for row in rows] == [number for number, line in enumerate(kept, 1) if line.strip()]


def test_records_have_the_place_of_their_fault() -> None:
    (error,) = read_rows([Record(7, RowFault(ErrorType.INVALID_ROW, "bad"), "r1")], FieldNames())
    assert error == RowError(0, 7, "r1", ErrorType.INVALID_ROW, "bad")
