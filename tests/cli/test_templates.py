"""Prompts put together from a row's fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from esurge_cli.rows.fields import FieldNames, read_rows
from esurge_cli.rows.row import ErrorType, Record, Row, RowError
from esurge_cli.text.templates import PromptTemplate
from runner.errors import UserError


def row_of(template: str, **fields: Any) -> Row | RowError:
    names = FieldNames(template=PromptTemplate.of_flag(template))
    (row,) = read_rows([Record(1, fields)], names)
    return row


def prompt_of(template: str, **fields: Any) -> Any:
    row = row_of(template, **fields)
    assert isinstance(row, Row), row
    return row.prompt


def fault_of(template: str, **fields: Any) -> str:
    row = row_of(template, **fields)
    assert isinstance(row, RowError)
    assert row.type is ErrorType.INVALID_ROW
    return row.message


def test_fields_are_put_into_the_prompt() -> None:
    template = "{{ question }}\n{% for choice in choices %}- {{ choice }}\n{% endfor %}Answer:"
    assert prompt_of(template, question="<q> & é?", choices=["a", "b"]) == "<q> & é?\n- a\n- b\nAnswer:"


def test_the_prompt_and_messages_of_the_row_are_fields_like_others() -> None:
    assert prompt_of("Q: {{ prompt }}", prompt="Hi", messages=[]) == "Q: Hi"


def test_row_is_all_fields() -> None:
    assert prompt_of('{{ row["my field"] }}{{ row | length }}', **{"my field": "x", "b": 1}) == "x2"
    assert prompt_of("{{ row }}", row="own") == "own"


def test_the_row_keeps_its_id_and_parameters() -> None:
    row = row_of("{{ q }}", id=7, q="x", max_tokens=3)
    assert isinstance(row, Row)
    assert (row.id, row.sampling) == (7, {"max_tokens": 3})


def test_a_field_that_is_not_there_is_named() -> None:
    assert fault_of("{{ question }}", q="x") == "the prompt template fails: 'question' is undefined"
    assert "no attribute 'b'" in fault_of("{{ a.b }}", a={})
    assert "undefined" in fault_of("{% if question %}{% endif %}", q="x")


@pytest.mark.parametrize(
    "template",
    [
        "{{ 1 // n }}",
        "{{ n + 'a' }}",
        "{% include 'x' %}",
        "{{ n.__class__.__mro__ }}",
        "{{ row.update({'n': 1}) }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
    ],
)
def test_whatever_goes_wrong_or_is_not_allowed_is_a_fault_of_the_row(template: str) -> None:
    message = fault_of(template, n=0)
    assert message.startswith("the prompt template fails: ")
    assert "\n" not in message


def test_a_file_is_a_template_without_its_last_newline(tmp_path: Path) -> None:
    file = tmp_path / "t.jinja"
    file.write_text("é{{ q }}\n\n", encoding="utf-8")
    assert prompt_of(f"@{file}", q="x") == "éx\n"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ a", "is not a Jinja template: unexpected end of template.*line 1"),
        ("\n{{ a | nonsense }}", "No filter named 'nonsense'.*line 2"),
        ("@nowhere.jinja", "nowhere.jinja cannot be read: No such file"),
    ],
)
def test_what_is_no_template_is_said_at_once(template: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        PromptTemplate.of_flag(template)
