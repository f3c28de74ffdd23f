"""The bytes of one input."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable
from typing import Any, BinaryIO, cast

from esurge_cli.errors import RunFailed
from esurge_cli.rows.compression import Readable, decompressed

CHUNK = 1 << 18


class Stream(io.RawIOBase):
    """A file whose beginning can be looked at before it is read. Whatever goes wrong with it is a RunFailed."""

    def __init__(self, name: str, file: Readable, compressed: Stream | None = None) -> None:
        self.name = name
        self.is_compressed = compressed is not None
        self._compressed = compressed
        self._file = file
        self._read_some: Callable[[int], bytes] = getattr(file, "read1", file.read)
        self._head = b""

    def peek(self, is_enough: Callable[[bytes], bool]) -> bytes:
        """The first bytes, until they are enough or all there are."""
        while not is_enough(self._head) and (data := self._next(CHUNK)):
            self._head += data
        return self._head

    def read1(self, size: int = CHUNK) -> bytes:
        """What is there now, at most `size` bytes if the file likes; nothing at the end."""
        if self._head:
            data, self._head = self._head[:size], self._head[size:]
            return data
        return self._next(size)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self.read1(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seekable_file(self) -> BinaryIO:
        """For formats that are read from their ends; a pipe's bytes go to a temporary file on the disk first."""
        file = cast("BinaryIO", self._file)
        if not self.is_compressed and file.seekable():
            file.seek(0)
            return file
        spooled = tempfile.TemporaryFile()  # noqa: SIM115 - it is the caller's
        while data := self.read1():
            spooled.write(data)
        spooled.seek(0)
        return cast("BinaryIO", spooled)

    def close(self) -> None:
        for file in (self._file, self._compressed):
            if file is not None:
                file.close()
        super().close()

    def _next(self, size: int) -> bytes:
        try:
            return self._read_some(size)
        except Exception as error:  # of whatever file system or compression it is
            raise failure(self.name, error) from error


def decompressed_stream(name: str, file: BinaryIO) -> Stream:
    """The file's bytes, as they were before they were compressed."""
    stream = Stream(name, file)
    try:
        inner = decompressed(stream, name)
    except EOFError as error:
        raise failure(name, error) from error
    return stream if inner is stream else Stream(name, inner, stream)


def failure(name: str, error: Exception) -> RunFailed:
    """The one line for an input that broke; one that is such a line already is kept."""
    if isinstance(error, RunFailed):
        return error
    reason = (isinstance(error, OSError) and error.strerror) or " ".join(str(error).split()) or type(error).__name__
    return RunFailed(f"{name} cannot be read to its end: {reason}")
