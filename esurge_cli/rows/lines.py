"""Bytes to lines, however long they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from esurge_cli.rows.row import ErrorType, RowFault
from esurge_cli.sizes import show_bytes

_CHUNK = 1 << 18


class Chunks(Protocol):
    """A file as far as lines need it."""

    def read1(self, size: int = -1, /) -> bytes: ...


def read_lines(file: Chunks, max_bytes: int) -> Iterator[bytes | None]:
    r"""Lines without the \n that ends them, which alone does; \r and all else is left in.

    A line of more than `max_bytes` bytes is None: it is passed over, and no more of it is held than that.
    """
    pieces: list[bytes] = []
    size = 0
    while chunk := file.read1(_CHUNK):
        first, *others = chunk.split(b"\n")
        size += len(first)
        if size <= max_bytes:
            pieces.append(first)
        else:
            pieces.clear()
        if others:
            yield b"".join(pieces) if size <= max_bytes else None
            last = others.pop()
            for line in others:
                yield line if len(line) <= max_bytes else None
            size = len(last)
            pieces = [last] if size <= max_bytes else []
    if size:
        yield b"".join(pieces) if size <= max_bytes else None


def too_long(max_bytes: int) -> RowFault:
    """What becomes of such a line."""
    return RowFault(ErrorType.LINE_TOO_LONG, f"longer than {show_bytes(max_bytes)}; --max-line-bytes allows more")
