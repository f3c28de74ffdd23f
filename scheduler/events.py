"""What happened to requests, and when: for whoever measures. Nothing is decided by it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum


class EventKind(StrEnum):
    QUEUED = "queued"
    SCHEDULED = "scheduled"  # begun, or begun anew after a preemption
    FIRST_TOKEN = "first_token"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclass(slots=True, frozen=True)
class Event:
    """`time` is in seconds of `time.monotonic`."""

    request_id: str
    kind: EventKind
    time: float


class EventLog:
    """Keeps events until they are taken; one that is off keeps none."""

    def __init__(self, is_on: bool) -> None:
        self.is_on = is_on
        self._events: list[Event] = []

    def record(self, request_id: str, kind: EventKind) -> None:
        if self.is_on:
            self._events.append(Event(request_id, kind, time.monotonic()))

    def take(self) -> list[Event]:
        events, self._events = self._events, []
        return events
