"""What a run before has left, read back: every row that is whole, whatever happened to the files since."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from esurge_cli.results import disk
from esurge_cli.results.fingerprint import key_of
from esurge_cli.results.journal import MAX_LINES, Entry, checksum, header, read_records, read_settings, record
from esurge_cli.results.known import UNKNOWN, Known
from esurge_cli.results.lines import Origin, ReadOrigin
from runner.errors import UserError

_BUFFER = 1 << 20


def recover(data: Path, journal: Path, settings: Mapping[str, Any], read_origin: ReadOrigin | None) -> Known:
    """The rows of `data`, and a new journal of them under `settings`.

    The journal tells of them for as long as it agrees with the lines. Where it is missing or does not, the lines tell
    for themselves, if there is a `read_origin` for their format; those whose row was what it is now cannot be told.
    Raises UserError, with all as it was, where there is something that is no result.
    """
    known = Known()
    new_journal = journal.with_name(f"{journal.name}.new")
    with data.open("rb", _BUFFER) as lines, new_journal.open("wb", _BUFFER) as records:
        records.write(header(settings))
        for entry, block in _rows(lines, journal, read_origin):
            known.add(entry)
            records.write(record(entry, block))
        records.flush()
        disk.sync(records.fileno())
    disk.replace(new_journal, journal)
    return known


def _rows(lines: BinaryIO, journal: Path, read_origin: ReadOrigin | None) -> Iterator[tuple[Entry, bytes]]:
    has_journal = read_settings(journal) is not None
    end = 0
    for entry, expected in _records(journal) if has_journal else ():
        block = lines.read(entry.length)
        if len(block) < entry.length or checksum(entry, block) != expected:
            break
        end += entry.length
        yield entry, block
    else:
        if has_journal:
            return  # lines that follow were never entered: a crash came between
    if read_origin is not None:
        before = {entry.row: entry for entry, _ in _records(journal)} if has_journal else {}
        lines.seek(end)
        yield from _told_by_lines(lines, before, read_origin)
    elif not has_journal and lines.read(1):
        raise UserError(f"{lines.name} has no journal that tells whose lines it holds; give --overwrite to replace it")


def _records(journal: Path) -> Iterator[tuple[Entry, int]]:
    for chunk in read_records(journal):
        for *values, expected in chunk.tolist():
            yield Entry(*values), expected


def _told_by_lines(
    lines: BinaryIO, before: Mapping[int, Entry], read_origin: ReadOrigin
) -> Iterator[tuple[Entry, bytes]]:
    """`before` are entries of the old journal: their fingerprints hold for rows that have as many lines as they had."""
    for (index, row_id), group in itertools.groupby(_whole_lines(lines, read_origin), key=lambda line: line[0][:2]):
        parts = list(group)
        block = b"".join(text for _, text in parts)
        status = max(origin.status for origin, _ in parts)
        entry = Entry(index, key_of(row_id), UNKNOWN, len(block), status, min(len(parts), MAX_LINES))
        old = before.get(index)
        if old is not None and old._replace(fingerprint=UNKNOWN, length=entry.length) == entry:
            entry = old._replace(length=entry.length)
        yield entry, block


def _whole_lines(lines: BinaryIO, read_origin: ReadOrigin) -> Iterator[tuple[Origin, bytes]]:
    for line in lines:
        try:
            if line.endswith(b"\n"):
                yield read_origin(line), line
            elif not line.startswith(b"{"):
                raise ValueError
        except ValueError as error:
            raise UserError(
                f"{lines.name} is no output to go on with, as it holds {line[:40]!r}; "
                "name another file, or give --overwrite to replace it"
            ) from error
