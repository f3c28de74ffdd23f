"""Stop strings, matched on text."""

from __future__ import annotations

from collections.abc import Sequence


class StopFinder:
    """Finds the first occurrence of any of `stops` in a text that grows, whatever the pieces it grows by.

    First is the one that begins first, and of those that begin together the shortest.
    """

    __slots__ = ("_longest", "_searched", "_stops")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = sorted(stops, key=len)
        self._longest = len(self._stops[-1])
        self._searched = 0

    def skip(self, text: str) -> None:
        """Let no occurrence count that ends within `text`, the beginning of the text."""
        self._searched = len(text)

    def find(self, text: str, is_whole: bool) -> tuple[int, str] | None:
        """Where the first occurrence begins, and what it is of.

        None as well while one that begins before it may still be completed, unless the text `is_whole`.
        """
        searched = self._searched
        found = None
        for stop in self._stops:
            at = text.find(stop, max(0, searched - len(stop) + 1))
            if at >= 0 and (found is None or at < found[0]):
                found = at, stop
        if found is None:
            self._searched = len(text)
        elif not is_whole and self._may_begin_before(text, found[0]):
            return None
        return found

    def _may_begin_before(self, text: str, position: int) -> bool:
        """Whether the text ends with the beginning of a stop string that starts before `position`."""
        starts = range(max(0, len(text) - self._longest + 1), position)
        return any(
            stop.startswith(text[start:]) for start in starts for stop in self._stops if len(stop) > len(text) - start
        )
