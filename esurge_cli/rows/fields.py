"""From the fields of a record to a Row: which field is what."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from esurge_cli.rows.messages import check_messages
from esurge_cli.rows.row import Chat, ErrorType, Record, Row, RowError, RowFault
from esurge_cli.sampling import PARAMETERS
from esurge_cli.text.templates import PromptTemplate

_EXACT = float(1 << 53)
"""Floats below it are as good as whole numbers."""


@dataclass(frozen=True, slots=True)
class FieldNames:
    """What the fields are called; None is the usual name, and takes any of the two that a row has.

    With a `template`, which is over all fields, none of them is the prompt by itself.
    """

    prompt: str | None = None
    messages: str | None = None
    id: str = "id"
    template: PromptTemplate | None = None


def read_rows(records: Iterable[Record], names: FieldNames) -> Iterator[Row | RowError]:
    """Number the records, and find each one's id, prompt and parameters."""
    for index, record in enumerate(records):
        fields = record.fields
        if isinstance(fields, RowFault):
            yield RowError(index, record.line, record.id, fields.type, str(fields))
            continue
        row_id = None
        try:
            row_id = _id(fields, names)
            prompt = _prompt(fields, names)
        except RowFault as fault:
            yield RowError(index, record.line, row_id, fault.type, str(fault), fields)
        else:
            sampling = {name: fields[name] for name in fields if name in PARAMETERS}
            yield Row(index, record.line, row_id, prompt, sampling, fields)


def _id(fields: dict[str, Any], names: FieldNames) -> str | int | None:
    value = fields.get(names.id)
    if value is None or type(value) in (str, int):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)  # what data frames make of a column with gaps
    raise RowFault(ErrorType.INVALID_ROW, f"{names.id} must be a string or a whole number")


def _prompt(fields: dict[str, Any], names: FieldNames) -> str | list[int] | Chat:
    """A field that a flag names wins over the usual name of the other kind."""
    if names.template is not None:
        return names.template.render(fields)
    prompt_name, messages_name = names.prompt or "prompt", names.messages or "messages"
    wants_prompt = fields.get(prompt_name) is not None and not (names.messages and not names.prompt)
    wants_messages = fields.get(messages_name) is not None and not (names.prompt and not names.messages)
    if wants_prompt and wants_messages:
        raise RowFault(ErrorType.INVALID_ROW, f"both {prompt_name} and {messages_name} are given")
    if wants_messages:
        return Chat(check_messages(fields[messages_name], messages_name))
    if wants_prompt:
        return _text_or_tokens(fields[prompt_name], prompt_name)
    missing = names.prompt or names.messages or f"{prompt_name} or {messages_name}"
    raise RowFault(ErrorType.INVALID_ROW, f"{missing} is missing")


def _text_or_tokens(value: Any, name: str) -> str | list[int]:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and {*map(type, value)} <= {int}:
        return value
    raise RowFault(ErrorType.INVALID_ROW, f"{name} must be a string or a list of token ids")
