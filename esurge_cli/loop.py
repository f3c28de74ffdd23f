"""The loop: feed → schedule → run → update → emit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from esurge_cli.errors import RunFailed
from esurge_cli.feed import Feed
from esurge_cli.generation import Generation, Sample
from esurge_cli.prepare import Outcome, PreparedRow, SkippedRow
from esurge_cli.results.lines import Lines
from esurge_cli.results.result import KeptRow, Status
from esurge_cli.results.writer import Writer
from esurge_cli.rows.row import RowError
from esurge_cli.text.detokenizer import TokenTexts
from esurge_cli.totals import Totals
from runner.errors import DeviceError
from scheduler import EngineCoreOutput, EngineRequestStatus, ModelRunnerOutput, Scheduler, SchedulerOutput

_MAX_PROMPT_TOKENS = 1 << 21
"""Prompt tokens in flight beyond which no more rows are taken: about 100 MB."""

_MAX_HELD = 1 << 16
"""Finished rows that may wait for one before them."""

_PATIENCE = 0.2
"""Seconds to wait for a row at a time, when there is nothing to run."""


class Runner(Protocol):
    """What runs a step: eSurgeRunner, or a test's. Only a loop that is a step ahead dispatches."""

    def run(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput: ...

    def dispatch(self, scheduler_output: SchedulerOutput) -> Callable[[], ModelRunnerOutput]: ...


class Loop:
    """Generates the rows of `feed`, and writes each once all its samples are done.

    `max_rows` bounds the rows in flight. `stop_token_ids` are the model's own. With `is_async`, which the scheduler
    must be too, the runner is always given a step before the last one is read. Before each step it is asked whether
    rows may still begin, and whether to stop; `after_step` is called after each, and while rows are awaited.
    """

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        feed: Feed,
        writer: Writer,
        lines: Lines,
        texts: TokenTexts,
        stop_token_ids: list[int],
        max_rows: int,
        is_async: bool = False,
        is_taking: Callable[[], bool] = lambda: True,
        is_stopping: Callable[[], bool] = lambda: False,
        after_step: Callable[[Totals], None] = lambda totals: None,
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._feed = feed
        self._writer = writer
        self._lines = lines
        self._texts = texts
        self._stop_token_ids = stop_token_ids
        self._max_rows = max_rows
        self._is_async = is_async
        self._ahead: tuple[SchedulerOutput, Callable[[], ModelRunnerOutput]] | None = None
        self._is_taking = is_taking
        self._is_stopping = is_stopping
        self._after_step = after_step
        self._in_flight: dict[str, tuple[Generation, Sample]] = {}
        self._num_rows = 0
        self._num_prompt_tokens = 0
        self.totals = Totals()

    def run(self) -> bool:
        """Whether all rows were written; False where it was stopped before.

        Raises what has kept the feed from reading on, once the rows before that are written.
        """
        while not self._is_stopping():
            if self._is_taking():
                self._take_rows()
            is_idle = not self._scheduler.get_num_unfinished_requests()
            if not is_idle:
                self._step()
            self._writer.flush()
            self._after_step(self.totals)
            if is_idle and (self._feed.is_exhausted or not self._is_taking()):
                break
        if self._feed.error is not None and self._is_taking():
            raise self._feed.error
        return self._is_complete()

    def _is_complete(self) -> bool:
        return self._feed.is_exhausted and not self._scheduler.get_num_unfinished_requests()

    def _step(self) -> None:
        scheduler_output = self._scheduler.schedule()
        try:
            if self._is_async:
                self._step_ahead(scheduler_output)
            else:
                self._update(scheduler_output, self._runner.run(scheduler_output))
        except DeviceError as error:
            raise RunFailed(str(error)) from error

    def _step_ahead(self, scheduler_output: SchedulerOutput) -> None:
        """Let the device begin the step before the results of the one before it are looked at."""
        before, self._ahead = self._ahead, (scheduler_output, self._runner.dispatch(scheduler_output))
        if before is not None:
            self._update(before[0], before[1]())

    def _update(self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput) -> None:
        by_client = self._scheduler.update_from_output(scheduler_output, model_runner_output)
        for outputs in by_client.values():
            for output in outputs.outputs:
                self._take_output(output)
        self.totals.num_steps += 1

    # Rows in

    def _take_rows(self) -> None:
        """Take the rows that are there, as many as may be in flight; wait for one only if there is nothing to run."""
        while self._has_room():
            is_idle = not self._scheduler.get_num_unfinished_requests()
            outcome = self._feed.take(_PATIENCE if is_idle else 0)
            if outcome is None:
                break
            self._begin(outcome)

    def _has_room(self) -> bool:
        return (
            self._num_rows < self._max_rows
            and self._num_prompt_tokens < _MAX_PROMPT_TOKENS
            and self._writer.num_held < _MAX_HELD
        )

    def _begin(self, outcome: Outcome) -> None:
        if isinstance(outcome, PreparedRow):
            self._add(Generation(outcome, self._texts))
        elif isinstance(outcome, SkippedRow):
            self.totals.num_skipped += 1
            self._writer.write(outcome.index, b"", Status.LEFT_OUT)
        elif isinstance(outcome, KeptRow):
            self._writer.write(outcome.index, outcome.lines, outcome.status)
        else:
            self._write_error(outcome)

    def _add(self, generation: Generation) -> None:
        self._num_rows += 1
        self._num_prompt_tokens += len(generation.prepared.prompt_token_ids)
        requests = generation.requests(self._stop_token_ids)
        for request, sample in zip(requests, generation.samples, strict=True):
            self._in_flight[request.request_id] = generation, sample
            self._scheduler.add_request(request)

    # Results out

    def _take_output(self, output: EngineCoreOutput) -> None:
        in_flight = self._in_flight.get(output.request_id)
        if in_flight is None:
            return
        generation, sample = in_flight
        self.totals.num_output_tokens += len(output.new_token_ids)
        if output.error is not None:
            generation.fail(output.error)
        else:
            sample.take(output)
        if sample.finish_reason is not None:
            del self._in_flight[sample.request_id]
        if sample.finish_reason is not output.finish_reason:  # a stop string ended it
            self._scheduler.finish_requests(sample.request_id, EngineRequestStatus.FINISHED_STOPPED)
        if generation.is_done:
            self._end(generation)

    def _end(self, generation: Generation) -> None:
        self._num_rows -= 1
        self._num_prompt_tokens -= len(generation.prepared.prompt_token_ids)
        if generation.error is not None:
            self._drop(generation)
            self._write_error(generation.error)
            return
        results = generation.results()
        is_cut = self.totals.add(results)
        status = Status.CUT if is_cut else Status.GOOD
        self._writer.write(generation.prepared.row.index, self._lines.of_results(results), status)

    def _drop(self, generation: Generation) -> None:
        ids = [sample.request_id for sample in generation.samples if sample.request_id in self._in_flight]
        self._scheduler.finish_requests(ids, EngineRequestStatus.FINISHED_ABORTED)
        for request_id in ids:
            del self._in_flight[request_id]

    def _write_error(self, error: RowError) -> None:
        self.totals.errors[error.type] += 1
        self._writer.write(error.index, self._lines.of_error(error), Status.FAILED)
