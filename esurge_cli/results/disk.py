"""What the results do to the disk: every effect that a crash may come before or after, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path


def write(file: int, data: bytes) -> None:
    """All of `data` at the file's position. Raises OSError where it does not fit; part of it may be there then."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def truncate(file: int, size: int) -> None:
    os.ftruncate(file, size)
    os.lseek(file, size, os.SEEK_SET)


def sync(file: int) -> None:
    """Let the file survive the machine's end, not just the program's."""
    os.fsync(file)


def replace(source: Path, target: Path) -> None:
    """In one move: `target` is always whole, the old one or the new. The move itself survives the machine's end."""
    source.replace(target)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def remove(path: Path) -> None:
    path.unlink(missing_ok=True)
