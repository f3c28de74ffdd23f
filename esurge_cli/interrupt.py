"""Signals that end a run before its end."""

from __future__ import annotations

import os
import signal
import time
from types import FrameType, TracebackType

GRACE = 20.0
"""Seconds that rows in flight get after SIGTERM; whoever pre-empts a machine gives it 30."""

_SHOW_CURSOR = b"\x1b[?25h\n"


class Interrupt:
    """Within it a signal only leaves word, so that nothing is interrupted that writes results.

    Ctrl-C lets the step end, SIGTERM the rows in flight as well if they take no longer than `GRACE`. A second one ends
    it all at once.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._deadline = 0.0

    @property
    def exit_status(self) -> int:
        """As a shell has it: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + (self.signal or signal.SIGINT)

    def is_taking(self) -> bool:
        """Whether rows may still begin."""
        return self.signal is None

    def is_stopping(self) -> bool:
        """Whether to end after this step."""
        return self.signal is not None and time.monotonic() >= self._deadline

    def __enter__(self) -> Interrupt:
        self._before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            if os.isatty(2):
                os.write(2, _SHOW_CURSOR)
            os._exit(128 + number)
        self.signal = signal.Signals(number)
        self._deadline = time.monotonic() + (GRACE if number == signal.SIGTERM else 0)
