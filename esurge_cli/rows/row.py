"""One prompt of the input, or what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class ErrorType(StrEnum):
    """What kind of thing is wrong with a row, as the output's `error.type` says it."""

    INVALID_JSON = "invalid_json"
    INVALID_ROW = "invalid_row"
    INVALID_PARAMETER = "invalid_parameter"
    UNSUPPORTED_PARAMETER = "unsupported_parameter"
    LINE_TOO_LONG = "line_too_long"
    PROMPT_TOO_LONG = "prompt_too_long"
    ENGINE = "engine"


class RowFault(Exception):  # noqa: N818 - it never leaves the row's preparation
    """Raised while a row is read or prepared, and turned into the row's RowError there."""

    def __init__(self, type: ErrorType, message: str) -> None:  # noqa: A002 - the output's own word
        super().__init__(message)
        self.type = type


@dataclass(slots=True, frozen=True)
class Chat:
    """Messages for the model's chat template."""

    messages: list[dict[str, Any]]


@dataclass(slots=True)
class Row:
    """`index` counts the rows of the whole input, bad ones too, from 0; `line` the lines of its file, from 1.

    `prompt` is text, token ids or a chat; `sampling` are the row's own parameters as they were read, not checked yet;
    `data` are all fields of the row.
    """

    index: int
    line: int
    id: str | int | None
    prompt: str | list[int] | Chat
    sampling: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class RowError:
    """A row that cannot be generated from; places as in Row, `data` what could be read of it."""

    index: int
    line: int
    id: str | int | None
    type: ErrorType
    message: str
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class Record:
    """One line of the input as it was read: its fields, or why it has none; `id` is what is known of a faulty one."""

    line: int
    fields: dict[str, Any] | RowFault
    id: str | int | None = None
