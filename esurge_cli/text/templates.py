"""Prompts put together from a row's fields."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from esurge_cli.rows.row import ErrorType, RowFault
from runner.errors import UserError

_ROW = "row"


class PromptTemplate:
    """A Jinja template over the fields of a row, in Jinja's sandbox.

    Fields are called by their names; `row` is all of them, for a name that is none of Jinja's, as in `row["my field"]`.
    Raises UserError where it isn't a template.
    """

    def __init__(self, source: str) -> None:
        from jinja2 import StrictUndefined, TemplateSyntaxError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        self.source = source
        try:
            self._template = ImmutableSandboxedEnvironment(undefined=StrictUndefined).from_string(source)
        except TemplateSyntaxError as error:
            raise UserError(
                f"--prompt-template is not a Jinja template: {error.message} (line {error.lineno})"
            ) from error

    @classmethod
    def of_flag(cls, value: str) -> PromptTemplate:
        """The template itself, or @FILE, whose last newline is no part of it. Raises UserError."""
        return cls(read_template(Path(value[1:])) if value.startswith("@") else value)

    def render(self, fields: Mapping[str, Any]) -> str:
        """Raises RowFault with the name of a field that the row lacks, or with what else goes wrong."""
        try:
            return self._template.render({_ROW: fields, **fields})
        except Exception as error:  # whatever a template raises
            raise RowFault(ErrorType.INVALID_ROW, f"the prompt template fails: {reason_of(error)}") from error


def read_template(path: Path) -> str:
    """A template's text. Raises UserError."""
    try:
        return path.expanduser().read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"the template {path} cannot be read: {reason}") from error


def reason_of(error: Exception) -> str:
    """What an error says, on one line that is not too long."""
    lines = str(error).strip().splitlines()
    text = lines[0] if lines else type(error).__name__
    return text if len(text) <= 200 else text[:197] + "..."
