"""Lines of OpenAI's batch files: a request each, for chat or plain completions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from esurge_cli.rows.jsonl import read_jsonl
from esurge_cli.rows.row import ErrorType, Record, RowFault

_PROMPTS = {"/v1/chat/completions": "messages", "/v1/completions": "prompt"}
"""The endpoints, and the field of the body that each must have."""


def read_openai(lines: Iterable[bytes | None], id_field: str, max_line_bytes: int) -> Iterator[Record]:
    """The fields of each body, and the custom_id as the row's id, which a faulty request keeps too."""
    for record in read_jsonl(lines, max_line_bytes):
        if isinstance(record.fields, RowFault):
            yield record
            continue
        custom_id = record.fields.get("custom_id")
        try:
            body = _body(record.fields)
        except RowFault as fault:
            yield Record(record.line, fault, custom_id if isinstance(custom_id, str) else None)
        else:
            yield Record(record.line, {id_field: custom_id} | body | {id_field: custom_id})


def _body(request: dict[str, Any]) -> dict[str, Any]:
    """Raises RowFault."""
    if not isinstance(request.get("custom_id"), str):
        raise _fault("custom_id must be a string")
    if request.get("method") != "POST":
        raise _fault('method must be "POST"')
    url, body = request.get("url"), request.get("body")
    if not isinstance(url, str) or url not in _PROMPTS:
        raise _fault(f"url must be {' or '.join(_PROMPTS)}")
    if not isinstance(body, dict):
        raise _fault("body must be an object")
    if body.get(_PROMPTS[url]) is None:
        raise _fault(f"the body has no {_PROMPTS[url]}")
    return body


def _fault(message: str) -> RowFault:
    return RowFault(ErrorType.INVALID_ROW, message)
