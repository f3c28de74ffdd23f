"""One workload through the real loop, with a watch on each of its parts."""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from esurge_cli import display
from esurge_cli.bench.peak import gemm_peak
from esurge_cli.feed import ListFeed
from esurge_cli.generation import Generation
from esurge_cli.loop import Loop, Runner
from esurge_cli.prepare import Outcome
from esurge_cli.results.flat import FlatLines
from esurge_cli.results.result import Status
from esurge_cli.rows.row import Row, RowError
from esurge_cli.text.detokenizer import TokenTexts
from scheduler import EngineCoreOutput, ModelRunnerOutput, SchedulerOutput
from scheduler.stats import SchedulerStats

if TYPE_CHECKING:
    from esurge_cli.engine import Engine
    from esurge_cli.options import EngineOptions

_PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Measurement:
    """Times in seconds unless their names say milliseconds; memory in bytes, of the process so far.

    Tokens a second are of the whole run; `total` counts the prompts' tokens too, those from the cache included.
    `ttft_ms` is from a row's entry into the scheduler to its first token, `itl_ms` between a sample's steps.
    `host_share` is the part of the run that is spent outside the runner's steps: scheduling, updating, text.
    `model_flops_per_second` counts the matrices of the tokens computed, attention not. `gemm_peak_flops_per_second` is
    what XLA's own matrix product of the engine's dtype reached on this machine right after the run. That is a measure
    and no limit: the engine's native matrix products may be faster than XLA's, and the share then is above 1.
    """

    num_rows: int
    num_failed: int
    seconds: float
    num_steps: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    output_tokens_per_second: float
    total_tokens_per_second: float
    ttft_ms: dict[str, float]
    itl_ms: dict[str, float]
    step_ms: dict[str, float]
    host_share: float
    num_preemptions: int
    num_draft_tokens: int
    num_accepted_tokens: int
    peak_rss_bytes: int
    model_flops_per_second: float
    gemm_peak_flops_per_second: float

    @property
    def share_of_peak(self) -> float:
        return self.model_flops_per_second / self.gemm_peak_flops_per_second


def measure(
    engine: Engine, options: EngineOptions, rows: Sequence[Outcome], watch: Callable[[display.Status], None]
) -> Measurement:
    """Generate all rows, which are prepared already; results go nowhere. `watch` is called after each step.

    Raises AssertionError if anything was compiled meanwhile: the numbers would not be the engine's.
    """
    scheduler = engine.scheduler(options)
    texts = TokenTexts(engine.tokenizer)
    loop = TimedLoop(
        engine.runner,
        scheduler,
        ListFeed(rows),
        _NoWriter(),
        FlatLines(texts.alone),
        texts,
        engine.stop_token_ids,
        max_rows=len(rows),
        is_async=options.async_scheduling,
        after_step=lambda totals: watch(display.Status(totals, scheduler.get_stats(), len(rows))),
    )
    num_compiled = engine.runner.num_compilations
    start = time.perf_counter()
    loop.run()
    seconds = time.perf_counter() - start
    engine.runner.run(scheduler.schedule())  # it is told of the last to finish, and is free for another scheduler
    assert engine.runner.num_compilations == num_compiled, "something was compiled while it was measured"
    flops = engine.runner.config.flops_per_token() * loop.num_computed_tokens / seconds
    memory = peak_rss()
    return _measurement(loop, scheduler.get_stats(), seconds, memory, flops, gemm_peak(engine.runner.plan.dtype))


class TimedLoop(Loop):
    """The loop with a watch on the runner and on the tokens; what is neither is the host's share."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.step_seconds: list[float] = []
        self.first_token_seconds: list[float] = []
        self.between_seconds: list[float] = []
        self.num_computed_tokens = 0
        self._last_seen: dict[str, float] = {}
        self._runner = _TimedRunner(self._runner, self.step_seconds)

    def _add(self, generation: Generation) -> None:
        super()._add(generation)
        now = time.perf_counter()
        self._last_seen |= {sample.request_id: now for sample in generation.samples}

    def _update(self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput) -> None:
        self.num_computed_tokens += scheduler_output.total_num_scheduled_tokens
        super()._update(scheduler_output, model_runner_output)

    def _take_output(self, output: EngineCoreOutput) -> None:
        in_flight = self._in_flight.get(output.request_id)
        if in_flight is not None and output.new_token_ids:
            now = time.perf_counter()
            is_first = not in_flight[1].token_ids
            seconds = self.first_token_seconds if is_first else self.between_seconds
            seconds.append(now - self._last_seen[output.request_id])
            self._last_seen[output.request_id] = now
        super()._take_output(output)


@dataclass(frozen=True, slots=True)
class _TimedRunner:
    runner: Runner
    seconds: list[float]

    def run(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        start = time.perf_counter()
        output = self.runner.run(scheduler_output)
        self.seconds.append(time.perf_counter() - start)
        return output

    def dispatch(self, scheduler_output: SchedulerOutput) -> Callable[[], ModelRunnerOutput]:
        start = time.perf_counter()
        collect = self.runner.dispatch(scheduler_output)
        dispatched = time.perf_counter() - start

        def timed() -> ModelRunnerOutput:
            begin = time.perf_counter()
            output = collect()
            self.seconds.append(dispatched + time.perf_counter() - begin)
            return output

        return timed


class _NoWriter:
    num_held = num_changed = num_dropped = 0

    def __init__(self) -> None:
        self.kept: Counter[Status] = Counter()

    def admit(self, row: Row | RowError) -> Row | RowError:
        return row

    def write(self, index: int, lines: bytes, status: Status) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self, is_complete: bool) -> None:
        pass


def _measurement(
    loop: TimedLoop, stats: SchedulerStats, seconds: float, memory: int, flops: float, peak_flops: float
) -> Measurement:
    totals = loop.totals
    return Measurement(
        num_rows=totals.num_done,
        num_failed=totals.num_failed,
        seconds=seconds,
        num_steps=totals.num_steps,
        num_prompt_tokens=totals.num_prompt_tokens,
        num_cached_tokens=totals.num_cached_tokens,
        num_output_tokens=totals.num_output_tokens,
        output_tokens_per_second=totals.num_output_tokens / seconds,
        total_tokens_per_second=(totals.num_prompt_tokens + totals.num_output_tokens) / seconds,
        ttft_ms=_percentiles(loop.first_token_seconds),
        itl_ms=_percentiles(loop.between_seconds),
        step_ms=_percentiles(loop.step_seconds),
        host_share=1 - sum(loop.step_seconds) / seconds,
        num_preemptions=stats.num_preemptions,
        num_draft_tokens=stats.num_draft_tokens,
        num_accepted_tokens=stats.num_accepted_tokens,
        peak_rss_bytes=memory,
        model_flops_per_second=flops,
        gemm_peak_flops_per_second=peak_flops,
    )


def _percentiles(seconds: list[float]) -> dict[str, float]:
    """In milliseconds; empty where there is nothing to tell."""
    import numpy as np

    if not seconds:
        return {}
    values = np.percentile(np.array(seconds) * 1e3, _PERCENTILES)
    return {f"p{q}": round(float(value), 3) for q, value in zip(_PERCENTILES, values, strict=True)}


def peak_rss() -> int:
    """Bytes that the process had in memory at most, up to now."""
    return rss_bytes(resource.getrusage(resource.RUSAGE_SELF))


def rss_bytes(usage: resource.struct_rusage) -> int:
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
