"""What a caller of the scheduler relies on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from scheduler.output import EngineCoreOutputs, ModelRunnerOutput, SchedulerOutput
from scheduler.request import EngineRequest, EngineRequestStatus


class SchedulerInterface(ABC):
    """Add requests, then `schedule`, run the step, and `update_from_output`, until no request is unfinished."""

    @abstractmethod
    def add_request(self, request: EngineRequest) -> None:
        """Queue a request. One that can never run ends at once, as an error in the next `update_from_output`.

        Raises ValueError where a live request has its id already.
        """

    @abstractmethod
    def finish_requests(self, request_ids: str | Iterable[str], finished_status: EngineRequestStatus) -> None:
        """End requests from outside, whatever they are doing; they give no further output.

        Ids that are unknown, or finished already, are passed over. Raises ValueError for a status that is not final.
        """

    @abstractmethod
    def schedule(self) -> SchedulerOutput:
        """Decide the next step. It may be empty, and is then still to be run and updated from."""

    @abstractmethod
    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Take in what a step sampled: what each client's requests gained, by client index."""

    @abstractmethod
    def get_request_counts(self) -> tuple[int, int]:
        """Requests (running, waiting); the preempted ones wait."""

    @abstractmethod
    def get_num_unfinished_requests(self) -> int:
        """Requests that have output to come, failed ones not yet reported among them."""

    def has_unfinished_requests(self) -> bool:
        return self.get_num_unfinished_requests() > 0

    @abstractmethod
    def has_finished_requests(self) -> bool:
        """Whether requests ended that the runner has not been told of (the next `schedule` does)."""

    @abstractmethod
    def reset_prefix_cache(self) -> bool:
        """Forget what is cached, as after a change of weights; False, and nothing done, while any page is in use."""

    @abstractmethod
    def shutdown(self) -> None:
        """Abort all requests and let go of their pages."""
