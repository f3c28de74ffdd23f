"""One file of results, which goes on where an earlier run of the same rows has stopped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from esurge_cli.errors import RunFailed
from esurge_cli.results import disk
from esurge_cli.results.fingerprint import Fingerprints, key_of
from esurge_cli.results.journal import MAX_LINES, Entry
from esurge_cli.results.known import UNKNOWN, Known
from esurge_cli.results.lines import Lines
from esurge_cli.results.publish import Paths, publish, restore_spool, settle
from esurge_cli.results.recover import recover
from esurge_cli.results.result import KeptRow, Status
from esurge_cli.results.spool import Spool
from esurge_cli.rows.row import Row, RowError
from runner.errors import UserError


@dataclass(frozen=True, slots=True)
class Rules:
    """How files are written, and what of an earlier run's counts.

    `settings` are all that the rows' lines depend on besides the rows, as JSON values by name. Rows that ended as one
    of `retry` are made again. `num_lines` tells how many lines a good row has. Where the run takes only a part of the
    input (`is_part`), rows that are not in it are left as they are; otherwise they are dropped.
    """

    lines: Lines
    settings: Mapping[str, Any]
    fingerprints: Fingerprints
    num_lines: Callable[[Row | RowError], int]
    ordered: bool = True
    overwrite: bool = False
    resume: bool = False
    retry: frozenset[Status] = frozenset()
    is_part: bool = False


class _Identity(NamedTuple):
    """Of a row that is in flight: see Entry."""

    key: int
    fingerprint: int


class FileWriter:
    """Rows are appended as they finish; at the end, where all are there, they are put in order in one move.

    Raises UserError where the file exists and neither `overwrite` nor `resume` is given, or where another run writes
    it; RunFailed where the disk takes no more: the rows before are whole.
    """

    num_held = 0

    def __init__(self, paths: Paths, rules: Rules) -> None:
        self.kept: Counter[Status] = Counter()
        self._identities: dict[int, _Identity] = {}
        self.num_changed = self.num_dropped = 0
        self.num_admitted = self.num_written = 0
        self._paths = paths
        self._rules = rules
        check_file(paths, rules)
        try:
            self._spool, self._known = _open_recovered(paths, rules) if rules.resume else _open_new(paths, rules)
        except OSError as error:
            raise RunFailed(f"{paths.output} cannot be written: {error.strerror}") from error
        if rules.is_part:
            self._known.keep_all()

    def admit(self, row: Row | RowError) -> Row | RowError | KeptRow | None:
        identity = _Identity(key_of(row.id), self._rules.fingerprints.of(row))
        found = self._find(row, identity)
        if found is not None:
            self.kept[self._known.status(found)] += 1
            if self._known.index(found) == row.index:
                self._known.keep(found)
                return None
        self.num_admitted += 1
        self._identities[row.index] = identity
        return row if found is None else self._moved(found, row.index)

    def _find(self, row: Row | RowError, identity: _Identity) -> int | None:
        """The place of an entry that holds for the row."""
        for place in self._known.places_of(row.index, identity.key):
            if not self._holds(place, row, identity):
                self.num_changed += 1
            elif self._known.status(place) not in self._rules.retry:
                return place
        return None

    def _holds(self, place: int, row: Row | RowError, identity: _Identity) -> bool:
        known = self._known
        if known.fingerprint(place) != UNKNOWN:
            return known.fingerprint(place) == identity.fingerprint
        return known.num_lines(place) == self._rules.num_lines(row) or known.status(place) is Status.FAILED

    def _moved(self, place: int, index: int) -> KeptRow:
        self._known.drop(place)
        lines = self._spool.read(*self._known.span(place))
        return KeptRow(index, self._rules.lines.renumbered(lines, index), self._known.status(place))

    def write(self, index: int, lines: bytes, status: Status) -> None:
        identity = self._identities.pop(index)
        num_lines = min(lines.count(b"\n"), MAX_LINES)
        entry = Entry(index, identity.key, identity.fingerprint, len(lines), status, num_lines)
        self._spool.append(entry, lines)
        self.num_written += 1

    def flush(self) -> None:
        self._spool.flush()

    def close(self, is_complete: bool) -> None:
        try:
            self._spool.flush()
            self._spool.sync()
            if is_complete:
                is_kept, self._known = self._known.is_kept, Known()  # of many rows the rest is much, and of no more use
                self.num_dropped = publish(self._paths, self._rules.settings, is_kept, self._rules.ordered)
        except OSError as error:
            raise RunFailed(f"{self._paths.output} cannot be written: {error.strerror}") from error
        finally:
            self._spool.close()


def _open_new(paths: Paths, rules: Rules) -> tuple[Spool, Known]:
    spool = Spool(paths.spool, paths.journal)
    with _closed_on_failure(spool):
        disk.remove(paths.sorted)
        disk.remove(paths.sorted_journal)
        spool.start(0, rules.settings)
    return spool, Known()


def _open_recovered(paths: Paths, rules: Rules) -> tuple[Spool, Known]:
    spool = _open_settled(paths)
    with _closed_on_failure(spool):
        known = recover(paths.spool, paths.journal, rules.settings, rules.lines.read_origin)
        spool.start(known.size, None)
    return spool, known


def _open_settled(paths: Paths) -> Spool:
    """Nothing is settled before the lock is had; that may show that the locked file was of no use any more."""
    while True:
        restore_spool(paths)
        spool = Spool(paths.spool, paths.journal)
        with _closed_on_failure(spool):
            settle(paths)
        if paths.spool.exists():
            return spool
        spool.close()


@contextmanager
def _closed_on_failure(spool: Spool) -> Iterator[None]:
    try:
        yield
    except BaseException:
        spool.close()
        raise


class Permission(Protocol):
    """What may be done to an output that is there already."""

    @property
    def overwrite(self) -> bool: ...

    @property
    def resume(self) -> bool: ...


def check_file(paths: Paths, allowed: Permission) -> None:
    """Raises UserError where the file exists and is to be left alone, or cannot be made."""
    folder = paths.output.parent
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; make it, or name another file")
    if paths.output.is_dir():
        raise UserError(f"{paths.output} is a folder; name a file")
    if allowed.overwrite or allowed.resume:
        return
    if paths.output.exists():
        raise UserError(
            f"{paths.output} exists; name another file, give --resume to go on with it, or --overwrite to replace it"
        )
    if paths.spool.exists():
        raise UserError(
            f"{paths.spool} holds rows of a run that was interrupted; give --resume to go on with it, or --overwrite "
            "to begin anew"
        )
