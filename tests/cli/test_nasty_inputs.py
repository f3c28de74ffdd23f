"""Inputs as nobody should write them, each with its right outcome, through `esurge generate`.

The files of tests/data/nasty, and some that are made here as they are no text.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from fake_engine import install
from typer.testing import CliRunner, Result

from esurge_cli.app import app
from esurge_cli.errors import RunFailed
from esurge_cli.rows.fields import FieldNames
from esurge_cli.rows.files import Files
from esurge_cli.rows.source import Source
from runner.errors import UserError

FOLDER = Path(__file__).parents[1] / "data" / "nasty"

Outcome = list[str | tuple[str, int]]


def bad_json(*lines: int) -> Outcome:
    return [("invalid_json", line) for line in lines]


def bad_row(*lines: int) -> Outcome:
    return [("invalid_row", line) for line in lines]


OUTCOMES: dict[str, Outcome] = {
    # lines
    "empty.jsonl": [],
    "only_blank_lines.jsonl": [],
    "only_a_bom.jsonl": [],
    "bom.jsonl": ["a", "b"],
    "bom_in_the_middle.jsonl": ["a", "b", "c"],
    "crlf.jsonl": ["a", "b"],
    "cr_only.jsonl": bad_json(1),
    "blank_lines_between.jsonl": ["a", "b"],
    "no_last_newline.jsonl": ["a", "b"],
    "torn_last_line.jsonl": ["a", *bad_json(2)],
    "spaces_around.jsonl": ["a"],
    "line_separators_in_strings.jsonl": ["a\u2028b\u2029c\x85d", "e"],
    "form_feed_line.jsonl": ["a", "b"],
    "two_values_on_a_line.jsonl": [*bad_json(1), "c"],
    "two_values_with_a_comma.jsonl": [*bad_json(1, 2), "c"],
    "one_object_over_lines.jsonl": bad_json(1, 2, 3),
    "array_as_jsonl.jsonl": [*bad_json(1, 2), "b", *bad_json(4)],
    "comments.jsonl": [*bad_json(1), "a", *bad_json(3)],
    "python_literals.jsonl": [*bad_json(1, 2, 3), "c"],
    "trailing_commas.jsonl": [*bad_json(1), "b"],
    "not_objects.jsonl": [*bad_row(1, 2, 3, 4, 5, 6, 7), "b"],
    "csv_called_jsonl.jsonl": bad_json(1, 2),
    "name with spaces and ünïcode [1].jsonl": ["a"],
    # bytes
    "nul_line.jsonl": ["a", *bad_json(2), "b"],
    "nul_raw.jsonl": [*bad_json(1), "c"],
    "nul_escaped.jsonl": ["a\0b"],
    "control_characters.jsonl": [*bad_json(1), "a\tb\x1b\x7f"],
    "invalid_utf8.jsonl": ["a", *bad_json(2, 3, 4, 5), "b"],
    "latin1.jsonl": [*bad_json(1), "tea"],
    "utf16.jsonl": bad_json(1, 2),
    "cesu8.jsonl": ["\U0001f600"],
    "surrogate_pair.jsonl": ["\U0001f600"],
    "surrogates_alone.jsonl": [*bad_json(1, 2, 3, 4, 5), "a"],
    "surrogate_raw_alone.jsonl": [*bad_json(1), "a"],
    "surrogates_of_bytes.jsonl": ["caf\xe9", *bad_json(2)],
    "surrogate_not_escaped.jsonl": ["\\ud83d"],
    "noncharacters.jsonl": ["\ufffe\uffff\ufdd0"],
    "bad_escapes.jsonl": [*bad_json(1, 2), "A"],
    "combining_and_rtl.jsonl": ["e\u0301 \u202eabc\u202c \u200d"],
    # values
    "not_numbers.jsonl": [*bad_json(1, 2, 3), "b"],
    "huge_numbers.jsonl": ["a", *bad_json(2, 3, 4), "e"],
    "huge_ids.jsonl": ["a", "b", *bad_row(3)],
    "odd_ids.jsonl": ["a", "b", *bad_row(3, 4, 5), "f"],
    "equal_ids.jsonl": ["a", "b", "c"],
    "equal_keys.jsonl": ["b", "c"],
    "odd_keys.jsonl": ["a", *bad_row(2, 3)],
    "prompts_of_other_types.jsonl": [*bad_row(1, 2, 3, 4, 5, 6), "b"],
    "parameters_of_other_types.jsonl": [*(("invalid_parameter", line) for line in (1, 2, 3, 4)), "a"],
    "deep.jsonl": ["a", *bad_row(2), *bad_json(3, 4), "d"],
    "brackets_in_strings.jsonl": ["[[[{{{"],
    # JSON
    "array_pretty.json": ["a", "b"],
    "array_bom_crlf.json": ["a", "b"],
    "array_empty.json": [],
    "array_of_other_things.json": [*bad_row(1, 1, 1, 1), "b", *bad_json(1), "c"],
    "array_with_a_hole.json": ["a", *bad_json(1), "c", "d"],
    "array_tricky_strings.json": ['],[}{"\\', "b"],
    "one_object.json": ["a"],
    "lines_called_json.json": ["a", "b", *bad_json(3)],
    "not_json.json": bad_json(1),
    # CSV
    "quoted_newlines.csv": ["a\r\nb", 'c "d", e'],
    "bom_and_blank_lines.csv": ["a"],
    "ragged.csv": ["a", *bad_row(3, 4), "d"],
    "stray_quotes.csv": ['say "a"', *bad_row(3), "d"],
    "open_quote.csv": ["a", *bad_row(3)],
    "invalid_utf8.csv": ["a", *bad_row(3), "b"],
    "nul.csv": ["a\0b", "c"],
    "parameters.csv": ["ab", ("invalid_parameter", 3), ("invalid_parameter", 4), "ab"],
    "tabs.tsv": ["a, b", "c\td"],
    "only_a_header.csv": [],
    # text
    "prompts.txt": ["a", "  b  ", "{c", *bad_row(6), "# d"],
    "nul.txt": ["a\0b", "\0"],
    # OpenAI
    "requests.jsonl": ["a", *bad_row(2, 3, 4, 5, 6), *bad_json(7), "user: Hi\nassistant:"],
    "no_requests.jsonl": ["b"],
    # names that say nothing
    "no_suffix": ["a", "b"],
    "no_suffix_text": ["[INST] a [/INST]", "b"],
    "no_suffix_array": ["a"],
    "unknown.suffix": ["a", *bad_json(2)],
}


@pytest.fixture
def generate(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    install(monkeypatch)
    return lambda *arguments: CliRunner().invoke(app, ["generate", "--progress", "none", *map(str, arguments)])


def outcome_of(stdout: str) -> Outcome:
    rows = [json.loads(line) for line in stdout.split("\n")[:-1]]
    assert [row["index"] for row in rows] == list(range(len(rows)))
    return [row["text"] if row["error"] is None else (row["error"]["type"], row["error"]["line"]) for row in rows]


def test_every_file_has_its_outcome_here() -> None:
    assert sorted(OUTCOMES) == sorted(path.name for path in FOLDER.iterdir())
    assert len(OUTCOMES) >= 60


@pytest.mark.parametrize("name", OUTCOMES)
def test_an_input_of_the_corpus(name: str, generate: Callable[..., Result]) -> None:
    result = generate(FOLDER / name, "--keep-fields", "all", "--output-format", "jsonl")
    assert outcome_of(result.stdout) == OUTCOMES[name]
    num_bad = sum(isinstance(outcome, tuple) for outcome in OUTCOMES[name])
    assert result.exit_code == (3 if num_bad else 0)
    assert "Traceback" not in result.output


def test_the_whole_corpus_as_a_folder(generate: Callable[..., Result]) -> None:
    result = generate(FOLDER)
    named = sorted(name for name in OUTCOMES if "." in name and not name.endswith(".suffix"))
    assert outcome_of(result.stdout) == [outcome for name in named for outcome in OUTCOMES[name]]
    assert result.stderr.count("is given twice") == 1


A_AND_B = b'{"prompt": "a"}\n{"prompt": "b"}\n'


def parquet(columns: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


BINARY: dict[str, tuple[bytes, Outcome, str | None]] = {
    "two_members.jsonl.gz": (gzip.compress(A_AND_B) + gzip.compress(A_AND_B), ["a", "b", "a", "b"], None),
    "gzip_without_its_name.jsonl": (gzip.compress(A_AND_B), ["a", "b"], None),
    "only_its_name.jsonl.gz": (A_AND_B, [], "it does not begin as a gzip file"),
    "nothing.jsonl.gz": (b"", [], "it does not begin as a gzip file"),
    "of_nothing.jsonl.gz": (gzip.compress(b""), [], None),
    "of_nothing.jsonl.zst": (zstandard.compress(b""), [], None),
    "garbage_behind.jsonl.gz": (gzip.compress(A_AND_B) + b"garbage", ["a", "b"], "Not a gzipped file"),
    "torn.jsonl.gz": (gzip.compress(A_AND_B)[:-9], ["a", "b"], "ended before the end-of-stream marker"),
    "wrong_sum.jsonl.gz": (gzip.compress(A_AND_B)[:-8] + bytes(8), ["a", "b"], "CRC check failed"),
    "torn.jsonl.zst": (zstandard.compress(A_AND_B)[:-2], [], "ends in the midst of a frame"),
    "torn.csv.bz2": (bz2.compress(b"prompt\na\n")[:-4], ["a"], "ended before the end-of-stream marker"),
    "torn_array.json": (b'[{"prompt": "a"}, {"prompt": "b"', ["a"], "ends in the midst of an array"),
    "open_string.json": (b'[{"prompt": "a}, {"prompt": "b"}]', [], "ends in the midst of an array"),
    "long_line.jsonl": (
        b'{"prompt": "a"}\n{"prompt": "' + 100_000 * b"x" + b'"}\n{"prompt": "b"}\n',
        ["a", ("line_too_long", 2), "b"],
        None,
    ),
    "long_last_line.txt": (b"a\n" + 100_000 * b"x", ["a", ("line_too_long", 2)], None),
    "nested.parquet": (
        parquet({"id": [1, 1], "messages": [[{"role": "user", "content": "Hi"}], None], "x": [b"\xff", None]}),
        ["user: Hi\nassistant:", *bad_row(2)],
        None,
    ),
    "no_parquet.parquet": (A_AND_B, [], "Parquet magic bytes not found in footer"),
    "cut.parquet": (parquet({"prompt": ["a"]})[:-1], [], "Parquet magic bytes not found in footer"),
    "other_columns.parquet": (parquet({"question": ["a"]}), [], "has no column prompt or messages"),
    "equal_columns.csv": (b"prompt,prompt\na,b\n", [], "has more than one column prompt"),
}


@pytest.mark.parametrize("name", [name for name, (_, _, failure) in BINARY.items() if failure is None])
def test_an_input_that_is_made_here(name: str, generate: Callable[..., Result], tmp_path: Path) -> None:
    data, outcome, _ = BINARY[name]
    (tmp_path / name).write_bytes(data)
    result = generate(tmp_path / name, "--max-line-bytes", "64kB")
    assert outcome_of(result.stdout) == outcome
    assert result.exit_code == (3 if any(isinstance(one, tuple) for one in outcome) else 0)


@pytest.mark.parametrize("name", [name for name, (_, _, failure) in BINARY.items() if failure is not None])
def test_an_input_that_breaks_off(name: str, generate: Callable[..., Result], tmp_path: Path) -> None:
    """The rows before are read; whether they are still written depends on what runs when it breaks."""
    data, outcome, failure = BINARY[name]
    (tmp_path / name).write_bytes(data)
    read: list[Any] = []
    with pytest.raises((UserError, RunFailed), match=rf"{re.escape(name)}.*{failure}"):
        for row in Source(Files([str(tmp_path / name)], FieldNames()), FieldNames()).rows():
            read.append(row.prompt)  # type: ignore[union-attr]
    assert read == outcome
    result = generate(tmp_path / name)
    assert isinstance(result.exception, UserError | RunFailed)
    assert str(failure) in str(result.exception)
