"""Input with columns that all rows share: what they must be, and values that are no JSON."""

from __future__ import annotations

import base64
import datetime
import decimal
from collections.abc import Sequence
from typing import Any

from esurge_cli.rows.fields import FieldNames
from runner.errors import UserError


def check_columns(name: str, columns: Sequence[str], names: FieldNames) -> None:
    """Raises UserError, which lists the columns, for a field that is none of them, and for a column given twice."""
    twice = sorted({column for column in columns if columns.count(column) > 1})
    if twice:
        raise UserError(f"{name} has more than one column {twice[0]}")
    listed = f"its columns are {', '.join(columns)}"
    for field, flag in ((names.prompt, "--prompt-field"), (names.messages, "--messages-field")):
        if field is not None and field not in columns:
            raise UserError(f"{name} has no column {field} ({flag}); {listed}")
    if names.id != "id" and names.id not in columns:
        raise UserError(f"{name} has no column {names.id} (--id-field); {listed}")
    has_prompt = names.template or names.prompt or names.messages or {"prompt", "messages"} & set(columns)
    if not has_prompt:
        advice = "name one with --prompt-field, or write a --prompt-template"
        raise UserError(f"{name} has no column prompt or messages; {advice} ({listed})")


def as_json(value: Any) -> Any:
    """The value with what JSON hasn't as text: dates in ISO 8601, decimals as they are, bytes as UTF-8 or base64."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, dict):
        return {str(name): as_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if isinstance(value, bytes):
        return _as_text(value)
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return str(value) if isinstance(value, decimal.Decimal) else _as_plain(value)


def _as_text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()


def _as_plain(value: Any) -> Any:
    """NumPy's arrays and numbers know; of anything else there is what it is as text."""
    return as_json(value.tolist()) if hasattr(value, "tolist") else str(value)
