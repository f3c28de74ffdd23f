"""Compressed bytes, as they were before."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from esurge_cli.rows.stream import Stream

_ZSTD_CHUNK = 1 << 13
"""What a block says can be 30,000 times its size: so little is held even then."""


class Readable(Protocol):
    """What is needed of a file."""

    def read(self, size: int = -1, /) -> bytes: ...
    def close(self) -> None: ...


class ZstdFile:
    """Frames of Zstandard, one after another.

    The package's own reader takes the end of a torn file for the end of the data; this one raises EOFError.
    """

    def __init__(self, file: Any) -> None:
        import zstandard

        self._file = file
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)
        self._frame = self._decompressor.decompressobj()
        self._is_between = False
        self._rest = b""

    def read(self, size: int = -1, /) -> bytes:
        """What the next compressed bytes hold, whatever the size; nothing at the end."""
        while compressed := self._rest or self._file.read(_ZSTD_CHUNK):
            if self._is_between:
                self._frame = self._decompressor.decompressobj()
            data = self._frame.decompress(compressed)
            self._is_between = self._frame.eof
            self._rest = self._frame.unused_data
            if data:
                return data
        if not self._is_between:
            raise EOFError("it ends in the midst of a frame")
        return b""

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True, slots=True)
class Compression:
    """`magic` is how its files begin."""

    name: str
    magic: tuple[bytes, ...]
    open: Callable[[Any], Readable]


_ALL = {
    ".gz": Compression("gzip", (b"\x1f\x8b\x08",), lambda file: gzip.GzipFile(fileobj=file)),
    ".zst": Compression("Zstandard", (b"\x28\xb5\x2f\xfd",), ZstdFile),
    ".bz2": Compression("bzip2", tuple(b"BZh%d" % level for level in range(1, 10)), bz2.BZ2File),
    ".xz": Compression("xz", (b"\xfd7zXZ\x00",), lzma.LZMAFile),
}
SUFFIXES = frozenset(_ALL)
_MAGIC_BYTES = 6


def decompressed(stream: Stream, name: str) -> Readable:
    """The stream itself where it is not compressed, whatever its name; its name alone is not believed either way.

    Raises EOFError for a file that is named as a compressed one and does not begin as one.
    """
    head = stream.peek(lambda data: len(data) >= _MAGIC_BYTES)
    named = _ALL.get(PurePosixPath(name.lower()).suffix)
    for compression in [named] if named else _ALL.values():
        if head.startswith(compression.magic):
            return compression.open(stream)
    if named:
        raise EOFError(f"it does not begin as a {named.name} file")
    return stream
