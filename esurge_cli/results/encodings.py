"""What a file of lines becomes when it is complete: itself, or compressed."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol

_BUFFER = 1 << 20


class Encoding(Protocol):
    """How lines are kept in a file."""

    @property
    def is_plain(self) -> bool:
        """Whether the file is the lines themselves, so that it can be appended to."""

    def write(self, path: Path, blocks: Iterable[bytes]) -> None:
        """Make a file of lines, whole ones in each block; equal lines give equal bytes. Raises OSError.

        `blocks` may be iterated over several times.
        """

    def read(self, path: Path) -> Iterator[bytes]:
        """Its lines, in pieces of any size. Raises OSError or ValueError where it is damaged."""


class Plain:
    is_plain = True

    def write(self, path: Path, blocks: Iterable[bytes]) -> None:
        with path.open("wb", buffering=0) as file:
            file.writelines(blocks)

    def read(self, path: Path) -> Iterator[bytes]:
        with path.open("rb") as file:
            yield from iter(lambda: file.read(_BUFFER), b"")


@dataclass(frozen=True, slots=True)
class Compressed:
    """By a library's own kind of file."""

    open_to_write: Callable[[IO[bytes]], AbstractContextManager[Any]]
    open_to_read: Callable[[IO[bytes]], AbstractContextManager[Any]]
    is_plain: bool = False

    def write(self, path: Path, blocks: Iterable[bytes]) -> None:
        with path.open("wb") as file, self.open_to_write(file) as compressed:
            for block in blocks:
                compressed.write(block)

    def read(self, path: Path) -> Iterator[bytes]:
        with path.open("rb") as file, self.open_to_read(file) as lines:
            try:
                yield from iter(lambda: lines.read(_BUFFER), b"")
            except (EOFError, lzma.LZMAError, gzip.BadGzipFile) as error:
                raise ValueError(str(error)) from error


def _zstd_writer(file: IO[bytes]) -> AbstractContextManager[Any]:
    import zstandard

    return zstandard.ZstdCompressor().stream_writer(file, closefd=False)


@contextmanager
def _zstd_reader(file: IO[bytes]) -> Iterator[Any]:
    import zstandard

    try:
        yield zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True, closefd=False)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error


_BY_SUFFIX: dict[str, Encoding] = {
    ".gz": Compressed(
        lambda file: gzip.GzipFile("", "wb", fileobj=file, mtime=0), lambda file: gzip.GzipFile(fileobj=file)
    ),
    ".bz2": Compressed(partial(bz2.BZ2File, mode="wb"), bz2.BZ2File),
    ".xz": Compressed(partial(lzma.LZMAFile, mode="wb"), lzma.LZMAFile),
    ".zst": Compressed(_zstd_writer, _zstd_reader),
}


def encoding_of(path: Path) -> Encoding:
    """By the end of the file's name."""
    return _BY_SUFFIX.get(path.suffix, Plain())
