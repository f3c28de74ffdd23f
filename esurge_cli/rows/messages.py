"""The shape that the messages of a chat must have: OpenAI's, of text alone."""

from __future__ import annotations

from typing import Any

from esurge_cli.rows.row import ErrorType, RowFault


def check_messages(value: Any, name: str) -> list[dict[str, Any]]:
    """The messages as they are. Raises RowFault, which calls the field `name`."""
    if not isinstance(value, list) or not value:
        raise _fault(f"{name} must be a list of messages")
    for message in value:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _fault(f"each of {name} must be an object with a role")
        calls = message.get("tool_calls")
        if calls is not None:
            _check_tool_calls(calls)
        _check_content(message.get("content"), name, may_be_missing=bool(calls))
    return value


def _check_content(content: Any, name: str, may_be_missing: bool) -> None:
    if isinstance(content, str) or (content is None and may_be_missing):
        return
    if not isinstance(content, list) or not content:
        raise _fault(f"the content of each of {name} must be a string or a list of text parts")
    for part in content:
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise _fault("each part of a content must be an object with a type")
        if part["type"] != "text":
            raise RowFault(
                ErrorType.UNSUPPORTED_PARAMETER, f"a part of the type {part['type']}; only text is supported"
            )
        if not isinstance(part.get("text"), str):
            raise _fault("the text of a part must be a string")


def _check_tool_calls(calls: Any) -> None:
    if not isinstance(calls, list):
        raise _fault("tool_calls must be a list")
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise _fault("each of tool_calls must be an object with a function that has a name")
        if not isinstance(function.get("arguments", {}), str | dict):
            raise _fault("the arguments of a tool call must be JSON in a string, or an object")


def _fault(message: str) -> RowFault:
    return RowFault(ErrorType.INVALID_ROW, message)
