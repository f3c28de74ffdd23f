"""Requests that wait, in the order in which they are to run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict

from scheduler.request import EngineRequest


class RequestQueue(ABC):
    """Every method takes time that does not depend on how many wait (or at most on its logarithm)."""

    @abstractmethod
    def push(self, request: EngineRequest) -> None:
        """Add a request that has not run."""

    @abstractmethod
    def push_preempted(self, request: EngineRequest) -> None:
        """Put a request that ran back where it is among the next to run."""

    @abstractmethod
    def peek(self) -> EngineRequest:
        """The next request; the queue must not be empty."""

    @abstractmethod
    def remove(self, request: EngineRequest) -> None:
        """Take a request out, wherever it is."""

    @abstractmethod
    def __len__(self) -> int: ...


class FcfsQueue(RequestQueue):
    """First come, first served."""

    def __init__(self) -> None:
        self._requests: OrderedDict[str, EngineRequest] = OrderedDict()

    def push(self, request: EngineRequest) -> None:
        self._requests[request.request_id] = request

    def push_preempted(self, request: EngineRequest) -> None:
        self._requests[request.request_id] = request
        self._requests.move_to_end(request.request_id, last=False)

    def peek(self) -> EngineRequest:
        return next(iter(self._requests.values()))

    def remove(self, request: EngineRequest) -> None:
        del self._requests[request.request_id]

    def __len__(self) -> int:
        return len(self._requests)
