"""Makes docs/display.svg: what `esurge generate` shows in the midst of a run, drawn by the display itself.

python tests/e2e/picture.py prompts.jsonl [flags of generate]
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from esurge_cli import display
from esurge_cli.app import app

_TARGET = Path(__file__).parents[2] / "docs" / "display.svg"
_WIDTH = 108
_PART_DONE = 0.4


class Camera(display.RichDisplay):
    """Takes the picture once a part of the rows is done."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[str] = []
        self._is_taken = False

    def header(self, lines: list[str]) -> None:  # type: ignore[override]
        self._lines = lines
        super().header(lines)

    def update(self, status: display.Status) -> None:
        super().update(status)
        if not self._is_taken and status.num_rows and status.totals.num_done > _PART_DONE * status.num_rows:
            self._is_taken = True
            self._take()

    def _take(self) -> None:
        console = Console(record=True, width=_WIDTH, file=io.StringIO(), force_terminal=True)
        console.print(Text("$ esurge generate " + " ".join(sys.argv[1:]), "bold green"))
        first, *rest = self._lines
        console.print(Text(first, "bold"))
        for line in rest:
            console.print(Text(line, "dim"))
        console.print(self._render())
        console.save_svg(str(_TARGET), title="esurge")


if __name__ == "__main__":
    display.RichDisplay = Camera  # type: ignore[misc]
    app(["generate", *sys.argv[1:], "--progress", "rich"])
