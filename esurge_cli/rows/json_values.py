"""JSON files: an array of objects, or objects one after another, over as many lines as they like.

The file is only divided here, by brackets and strings, and each element is parsed as a line of JSON lines is. A
parser of JSON streams (ijson on yajl) would hold an element of any size, end the file at one that is broken, and turn
a lone surrogate into "?".
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator

from esurge_cli.errors import RunFailed
from esurge_cli.rows.jsonl import parse_object
from esurge_cli.rows.lines import too_long
from esurge_cli.rows.row import Record
from esurge_cli.rows.stream import CHUNK, Stream

_STRING_END = rb'(?:[^"\\]++|\\.)*+(?:(")|(\\?)\Z)'
_REST_OF_STRING = re.compile(_STRING_END, re.DOTALL)
_FLAT_OBJECT = rb'\{(?:[^{}\[\]"]++|"(?:[^"\\]++|\\.)*+")*+\}'
_TOKEN = re.compile(_FLAT_OBJECT + rb'|"' + _STRING_END + rb"|[{}\[\],]", re.DOTALL)
"""Most objects, or their parts, are flat: one step each."""


def read_json(stream: Stream, max_bytes: int) -> Iterator[Record]:
    """The elements, each with the line on which it begins. Raises RunFailed for a file that ends in the midst of one.

    One of more than `max_bytes` is passed over, and no more of it is held than that and a chunk.
    """
    stream.peek(lambda head: len(head) >= len(codecs.BOM_UTF8))  # so that it comes in one piece
    scanner = _Scanner()
    element = _Element(max_bytes)
    while chunk := stream.read1(CHUNK):
        start = 0
        for end, next_start in scanner.cuts(chunk):
            element.add(chunk[start:end])
            yield from element.take()
            start = next_start
        element.add(chunk[start:])
    if scanner.is_inside:
        raise RunFailed(f"{stream.name} cannot be read to its end: it ends in the midst of an array, object or string")
    yield from element.take()


def _begin(data: bytes) -> bytes:
    return data.removeprefix(codecs.BOM_UTF8).lstrip()


class _Scanner:
    """Where in the nesting the bytes are. `base` is the depth of elements: 1 in an array, 0 outside of any."""

    def __init__(self) -> None:
        self._base = 0
        self._depth = 0
        self._in_string = False
        self._is_escaped = False

    @property
    def is_inside(self) -> bool:
        return self._depth > 0 or self._in_string

    def cuts(self, chunk: bytes) -> Iterator[tuple[int, int]]:
        """Where an element ends in the chunk, and where the next begins.

        One ends with the bracket that closes it; in an array commas and the array's own brackets are around it too.
        """
        place = self._end_string(chunk) if self._in_string else 0
        for match in _TOKEN.finditer(chunk, place):
            start, end = match.span()
            token = chunk[start]
            if token == _QUOTE:
                self._note_end(match)
            elif end - start > 1:  # a flat object
                if self._depth in (0, self._base):
                    yield end, end
            elif token in _CLOSING:
                self._depth = max(self._depth - 1, 0)
                if self._depth <= self._base:
                    yield (end if self._depth == self._base else start), end
                    self._base = min(self._base, self._depth)
            elif token == _COMMA:
                if self._base == self._depth == 1:
                    yield start, end
            else:
                self._depth += 1
                if self._depth == 1 and token == _ARRAY:
                    self._base = 1
                    yield start, end

    def _end_string(self, chunk: bytes) -> int:
        """The place behind a string that began in a chunk before."""
        match = _REST_OF_STRING.match(chunk, int(self._is_escaped))
        assert match is not None  # it matches anything
        self._note_end(match)
        return match.end()

    def _note_end(self, match: re.Match[bytes]) -> None:
        self._in_string = match[1] is None
        self._is_escaped = bool(match[2])


_QUOTE, _COMMA, _ARRAY = b'",['
_CLOSING = frozenset(b"}]")


class _Element:
    """The bytes of an element while they come; blank ones before it are counted, not kept."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._line = 1
        self._text = bytearray()
        self._size = 0
        self._num_lines = 0

    def add(self, piece: bytes) -> None:
        if not self._size:
            begin = _begin(piece)
            self._line += piece[: len(piece) - len(begin)].count(b"\n")
            piece = begin
        self._size += len(piece)
        self._num_lines += piece.count(b"\n")
        if self._size <= self._max_bytes:
            self._text += piece
        else:
            self._text.clear()

    def take(self) -> Iterator[Record]:
        """The element that is complete, unless it is blank."""
        if self._size > self._max_bytes:
            yield Record(self._line, too_long(self._max_bytes))
        elif self._size:
            yield Record(self._line, parse_object(bytes(self._text).rstrip()))
        self._line += self._num_lines
        self._text.clear()
        self._size = self._num_lines = 0
