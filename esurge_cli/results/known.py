"""The rows that an earlier run has left in the output, and whether they are what this run would make."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np

from esurge_cli.results.journal import Entry
from esurge_cli.results.result import Status

UNKNOWN = 0
"""The fingerprint of lines that no journal tells of."""


class Known:
    """Entries in the order of the file, 32 bytes each. Of several of the same index the last one counts.

    Which of them belong to rows of this run's input is noted by `keep`.
    """

    def __init__(self) -> None:
        self._indices, self._keys, self._fingerprints = array("I"), array("Q"), array("Q")
        self._ends = array("Q")
        self._statuses, self._num_lines = array("B"), array("H")
        self.is_kept = bytearray()
        self._place_of_index: np.ndarray | None = None
        self._by_key: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self._indices)

    @property
    def size(self) -> int:
        """Bytes of all lines."""
        return self._ends[-1] if self._ends else 0

    def add(self, entry: Entry) -> None:
        self._indices.append(entry.row)
        self._keys.append(entry.key)
        self._fingerprints.append(entry.fingerprint)
        self._ends.append(self.size + entry.length)
        self._statuses.append(entry.status)
        self._num_lines.append(entry.num_lines)
        self.is_kept.append(0)

    def span(self, place: int) -> tuple[int, int]:
        """Where in the file the lines begin and end."""
        return self._ends[place - 1] if place else 0, self._ends[place]

    def index(self, place: int) -> int:
        return self._indices[place]

    def fingerprint(self, place: int) -> int:
        return self._fingerprints[place]

    def num_lines(self, place: int) -> int:
        return self._num_lines[place]

    def status(self, place: int) -> Status:
        return Status(self._statuses[place])

    def keep(self, place: int) -> None:
        self.is_kept[place] = 1

    def keep_all(self) -> None:
        """Those as well that no row asks for."""
        self.is_kept[:] = b"\x01" * len(self)

    def drop(self, place: int) -> None:
        self.is_kept[place] = 0

    def places_of(self, index: int, key: int) -> Iterator[int]:
        """Where a row may be: at its index, if the id is the same, then wherever its id is, the last written first."""
        if not self._indices:
            return
        here = self._at_index(index)
        if here is not None and self._keys[here] == key:
            yield here
        if key:
            yield from (place for place in self._at_key(key) if place != here and self._is_latest(place))

    def _is_latest(self, place: int) -> bool:
        return self._at_index(self._indices[place]) == place

    def _at_index(self, index: int) -> int | None:
        if self._place_of_index is None:
            indices = np.frombuffer(self._indices, np.uint32)
            self._place_of_index = np.full(int(indices.max()) + 1 if len(indices) else 0, -1, np.int32)
            self._place_of_index[indices] = np.arange(len(indices), dtype=np.int32)
        place = int(self._place_of_index[index]) if index < len(self._place_of_index) else -1
        return place if place >= 0 else None

    def _at_key(self, key: int) -> list[int]:
        keys = np.frombuffer(self._keys, np.uint64)
        if self._by_key is None:
            self._by_key = np.argsort(keys, kind="stable").astype(np.int32)
        first, last = (np.searchsorted(keys, np.uint64(key), side, sorter=self._by_key) for side in ("left", "right"))
        return self._by_key[first:last][::-1].tolist()
