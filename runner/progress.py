"""How long work tells how far it is, without knowing who listens."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called at the start of a task, as it goes on, and at its end with done equal to total.

    `done` and `total` are in the task's own unit: bytes for "download", tensors for "load", buckets for "compile".
    A total of None is not known. It may be called from another thread.
    """

    def __call__(self, task: str, done: float, total: float | None) -> None: ...


def no_progress(task: str, done: float, total: float | None) -> None:
    """For callers to whom nobody listens."""
