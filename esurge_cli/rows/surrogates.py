"""Halves of characters, which JSON can write and UTF-8 cannot."""

from __future__ import annotations

import json
from typing import Any, NoReturn


def parse_with_surrogates(text: bytes) -> Any:
    r"""The value of a JSON text whose strings may hold surrogates, repaired.

    Two halves of a character that stand beside each other, however each is written, are joined, and bytes that Python
    carried through as "\udc80" to "\udcff" are decoded. Raises ValueError where neither helps, or for what else
    isn't JSON, RecursionError where it is too deep.
    """
    decoded = text.decode("utf-8", "surrogatepass")
    return _repaired(json.loads(decoded, parse_int=_number, parse_float=_finite, parse_constant=_refuse))


def _repaired(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else _repaired_text(value)
    if isinstance(value, list):
        return [_repaired(item) for item in value]
    if isinstance(value, dict):
        return {_repaired(name): _repaired(item) for name, item in value.items()}
    return value


def _repaired_text(text: str) -> str:
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        pass
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8")
    except UnicodeError:
        raise ValueError("half of a character (a lone surrogate) in a string") from None


def _number(digits: str) -> int | float:
    """As orjson has it: what doesn't fit into 64 bits is a float."""
    number = int(digits) if len(digits) <= 20 else None
    return number if number is not None and -(2**63) <= number < 2**64 else _finite(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise ValueError("number is infinity when parsed as double")
    return number


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
