"""Numbers as people write them."""

from __future__ import annotations

import re

_TOKEN_UNITS = {"": 1, "k": 1_000, "m": 1_000_000, "K": 1 << 10, "M": 1 << 20}
_BYTE_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}


def parse_count(text: str) -> int:
    """A number of tokens or of anything counted: 512, 2k = 2,000, 2K = 2,048. Raises ValueError."""
    number, unit = _split(text)
    if unit not in _TOKEN_UNITS:
        raise ValueError(f"the unit {unit!r} is none of k, m (thousands) and K, M (1,024s)")
    count = number * _TOKEN_UNITS[unit]
    if count != int(count):
        raise ValueError("it must be a whole number")
    return int(count)


def parse_memory(text: str) -> int | float:
    """Bytes as an int (4GiB, 512MB), or a share as a float up to 1 (0.6). Raises ValueError."""
    number, unit = _split(text)
    if not unit and number <= 1:
        return number
    if unit.lower() not in _BYTE_UNITS:
        raise ValueError(f"the unit {unit!r} is none of kB, MB, GB, TB, KiB, MiB, GiB, TiB")
    return int(number * _BYTE_UNITS[unit.lower()])


def parse_bytes(text: str) -> int:
    """Bytes, at least one: 4MiB, 512kB, 1000. Raises ValueError."""
    number = parse_memory(text)
    if number != int(number) or number < 1:
        raise ValueError("it must be a number of bytes")
    return int(number)


def _split(text: str) -> tuple[float, str]:
    match = re.fullmatch(r"([0-9_]*\.?[0-9]+)\s*([A-Za-z]*)", text)
    if match is None:
        raise ValueError("it must be a number that is not negative, with a unit if any")
    return float(match[1].replace("_", "")), match[2]


def show_bytes(number: float) -> str:
    """1536 → "1.5 KiB"."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while number >= 1024 and len(units) > 1:
        number /= 1024
        units.pop(0)
    return f"{number:.3g} {units[0]}" if number < 1000 else f"{number:.0f} {units[0]}"


def show_time(seconds: float) -> str:
    """75 → "1:15"; 4000 → "1:06:40"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
