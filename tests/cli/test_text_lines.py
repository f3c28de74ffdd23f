"""Lines of nothing but text."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from esurge_cli.results.lines import Lines
from esurge_cli.results.result import Result, Usage
from esurge_cli.results.text import TextLines
from esurge_cli.rows.row import ErrorType, Row, RowError
from scheduler import FinishReason


def lines_of(*texts: str) -> bytes:
    row = Row(0, 1, None, "Hi")
    lines: Lines = TextLines()
    return lines.of_results(
        [Result(row, sample, text, FinishReason.STOP, None, Usage(), [], None) for sample, text in enumerate(texts)]
    )


def test_one_line_a_sample() -> None:
    assert lines_of(" Paris.", "", "é\u2028") == " Paris.\n\né\u2028\n".encode()


def test_a_line_stays_a_line() -> None:
    assert lines_of("a\nb\r\nc\\n") == rb"a\nb\r\nc\\n" + b"\n"


@given(st.text(st.characters(codec="utf-8")))
def test_the_text_can_be_had_back(text: str) -> None:
    line = lines_of(text).decode().removesuffix("\n")
    assert "\n" not in line and "\r" not in line
    assert re.sub(r"\\([\\nr])", lambda match: {"n": "\n", "r": "\r"}.get(match[1], "\\"), line) == text


def test_an_error_is_an_empty_line() -> None:
    assert TextLines().of_error(RowError(0, 1, "a", ErrorType.INVALID_ROW, "oh")) == b"\n"
