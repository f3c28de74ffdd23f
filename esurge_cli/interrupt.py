"""Ctrl-C: once to stop after the step, twice to stop at once."""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType

EXIT_STATUS = 130
_SHOW_CURSOR = b"\x1b[?25h\n"


class Interrupt:
    """Within it the first Ctrl-C only sets `is_set`; nothing is interrupted that writes results."""

    def __init__(self) -> None:
        self.is_set = False

    def __enter__(self) -> Interrupt:
        self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.is_set:
            if os.isatty(2):
                os.write(2, _SHOW_CURSOR)
            os._exit(EXIT_STATUS)
        self.is_set = True
