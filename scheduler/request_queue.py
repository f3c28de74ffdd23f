"""Requests that wait, in the order in which they are to run."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable

from scheduler.config import SchedulingPolicy
from scheduler.offline import throughput_order
from scheduler.request import EngineRequest


class RequestQueue(ABC):
    """No method's cost grows with the number that wait (but for the logarithm in a heap)."""

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
    """First come, first served; those preempted before all others."""

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

    def __contains__(self, request: EngineRequest) -> bool:
        return request.request_id in self._requests

    def __len__(self) -> int:
        return len(self._requests)


class PriorityQueue(RequestQueue):
    """The most urgent first, in a heap. What is removed from its middle stays there until it comes to the top."""

    def __init__(self) -> None:
        self._heap: list[tuple[Urgency, EngineRequest]] = []
        self._waiting: dict[str, EngineRequest] = {}

    def push(self, request: EngineRequest) -> None:
        self._waiting[request.request_id] = request
        heapq.heappush(self._heap, (urgency(request), request))

    def push_preempted(self, request: EngineRequest) -> None:
        self.push(request)

    def peek(self) -> EngineRequest:
        while self._is_gone(request := self._heap[0][1]):
            heapq.heappop(self._heap)
        return request

    def remove(self, request: EngineRequest) -> None:
        del self._waiting[request.request_id]
        if self._heap[0][1] is request:
            heapq.heappop(self._heap)
        elif len(self._heap) > 2 * len(self._waiting):
            self._heap = [entry for entry in self._heap if not self._is_gone(entry[1])]
            heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._waiting)

    def _is_gone(self, request: EngineRequest) -> bool:
        return self._waiting.get(request.request_id) is not request


class OfflineQueue(RequestQueue):
    """In the best order for throughput, sought among `look_ahead` requests at a time.

    The next that many are looked at once those before them have begun: so the order costs the same however many
    wait, and no request is overtaken by more than `look_ahead`.
    """

    def __init__(
        self, page_size: int, num_cached_tokens: Callable[[EngineRequest], int], look_ahead: int = 1024
    ) -> None:
        self._page_size = page_size
        self._num_cached_tokens = num_cached_tokens
        self._look_ahead = look_ahead
        self._arrived = FcfsQueue()
        self._ordered = FcfsQueue()

    def push(self, request: EngineRequest) -> None:
        self._arrived.push(request)

    def push_preempted(self, request: EngineRequest) -> None:
        self._ordered.push_preempted(request)

    def peek(self) -> EngineRequest:
        if not self._ordered:
            for request in throughput_order(self._next_arrived(), self._page_size, self._num_cached_tokens):
                self._ordered.push(request)
        return self._ordered.peek()

    def remove(self, request: EngineRequest) -> None:
        (self._ordered if request in self._ordered else self._arrived).remove(request)

    def __len__(self) -> int:
        return len(self._arrived) + len(self._ordered)

    def _next_arrived(self) -> list[EngineRequest]:
        requests: list[EngineRequest] = []
        while self._arrived and len(requests) < self._look_ahead:
            requests.append(self._arrived.peek())
            self._arrived.remove(requests[-1])
        return requests


Urgency = tuple[int, float, int]


def urgency(request: EngineRequest) -> Urgency:
    """Sorts the most urgent first: by priority, then by arrival. The scheduler reads no clock: `arrival_time` is the
    caller's word, and where there is none the order of adding decides.
    """
    return request.priority, request.arrival_time or 0.0, request.order


def make_queue(
    policy: SchedulingPolicy, page_size: int, num_cached_tokens: Callable[[EngineRequest], int]
) -> RequestQueue:
    match policy:
        case SchedulingPolicy.FCFS:
            return FcfsQueue()
        case SchedulingPolicy.PRIORITY:
            return PriorityQueue()
        case SchedulingPolicy.OFFLINE:
            return OfflineQueue(page_size, num_cached_tokens)
