"""What INPUT names: files, of folders and patterns too, here or at an address."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

from runner.errors import UserError

STDIN = "-"


def expand(inputs: Sequence[str], is_wanted: Callable[[str], bool]) -> list[str]:
    """Names of files, `-` and addresses; those of a pattern or folder are sorted.

    `is_wanted` says of a file's name whether it is read where a folder is named; hidden files are not. Raises
    UserError for what cannot be read.
    """
    if not inputs:
        raise UserError("name the input: files, or - for standard input")
    if inputs.count(STDIN) > 1:
        raise UserError("standard input can be read only once")
    return [file for name in inputs for file in _files_of(name, is_wanted)]


def is_address(name: str) -> bool:
    return "://" in name


def local_path(name: str) -> Path:
    return Path(name).expanduser()


def open_input(name: str) -> BinaryIO:
    """Standard input gets a buffer of its own, which a thread may hold while the program ends.

    Raises OSError, or what the file system of an address does.
    """
    if name == STDIN:
        return open(0, "rb", closefd=False)
    if is_address(name):
        file_system, path = _file_system(name)
        return cast("BinaryIO", file_system.open(path, "rb"))
    return local_path(name).open("rb")


def _files_of(name: str, is_wanted: Callable[[str], bool]) -> list[str]:
    if name == STDIN:
        return [name]
    if is_address(name):
        return _remote_files(name, is_wanted)
    path = local_path(name)
    if glob.has_magic(name) and not path.exists():
        found = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207 - an absolute pattern too
        if not found:
            raise UserError(f"no file is called {name}")
        return [file for match in found for file in _local_files(match, is_wanted)]
    return _local_files(name, is_wanted)


def _local_files(name: str, is_wanted: Callable[[str], bool]) -> list[str]:
    path = local_path(name)
    if path.is_dir():
        return _wanted(name, sorted(_walk(path)), is_wanted)
    if not path.is_fifo():  # a pipe can be opened only once
        _check(name, path)
    return [name]


def _walk(folder: Path) -> list[str]:
    """All files below the folder but hidden ones and those in hidden folders."""
    files = []
    for parent, folders, names in os.walk(folder, onerror=_cannot_list):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += [str(Path(parent, name)) for name in names if not name.startswith(".")]
    return files


def _cannot_list(error: OSError) -> None:
    raise UserError(f"{error.filename} cannot be read: {error.strerror}") from error


def _check(name: str, path: Path) -> None:
    try:
        path.open("rb").close()
    except FileNotFoundError as error:
        raise UserError(f"{name} does not exist") from error
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error.strerror}") from error


def _wanted(folder: str, files: list[str], is_wanted: Callable[[str], bool]) -> list[str]:
    wanted = [file for file in files if is_wanted(file)]
    if not wanted:
        raise UserError(f"{folder} is a folder without a file of a known kind; name the files in it")
    return wanted


def _remote_files(name: str, is_wanted: Callable[[str], bool]) -> list[str]:
    """Folders and patterns are looked up but on the web, which has neither."""
    file_system, path = _file_system(name)
    is_web = name.startswith(("http://", "https://"))
    try:
        if not is_web and glob.has_magic(path) and not file_system.exists(path):
            found = sorted(file_system.glob(path))
            if not found:
                raise UserError(f"no file is called {name}")
            return [file_system.unstrip_protocol(file) for file in found if not file_system.isdir(file)]
        if not is_web and file_system.isdir(path):
            files = [file for file in sorted(file_system.find(path)) if not _is_hidden(file, path)]
            return _wanted(name, [file_system.unstrip_protocol(file) for file in files], is_wanted)
        if not file_system.exists(path):
            raise UserError(f"{name} does not exist")
    except UserError:
        raise
    except Exception as error:  # each file system has its own
        raise UserError(f"{name} cannot be read: {' '.join(str(error).split())}") from error
    return [name]


def _is_hidden(file: str, folder: str) -> bool:
    return any(part.startswith(".") for part in file.removeprefix(folder).split("/"))


def _file_system(name: str) -> tuple[Any, str]:
    """Of an address, with the path in it. Raises UserError for one that needs another package, or no one knows."""
    import fsspec

    try:
        return fsspec.core.url_to_fs(name)
    except ImportError as error:
        missing = getattr(error.__cause__ or error, "name", None)
        advice = f"pip install {missing}" if missing else str(error)
        raise UserError(f"{name} needs a package that is not installed: {advice}") from error
    except Exception as error:  # ValueError, and those of each file system
        raise UserError(f"{name} cannot be read: {' '.join(str(error).split())}") from error
