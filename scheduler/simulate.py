"""A workload through the scheduler alone, with no model: `python -m scheduler.simulate --help`.

It answers what a policy or a limit does to steps, computed tokens and preemptions in seconds instead of hours, and
what the scheduler itself costs.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from scheduler.cache.specs import CacheGroupsConfig, CacheGroupSpec, FullAttentionSpec, PagedSpec, SlidingWindowSpec
from scheduler.config import CacheConfig, Config, SchedulerConfig, SchedulingPolicy
from scheduler.output import ModelRunnerOutput, SchedulerOutput
from scheduler.request import EngineRequest
from scheduler.sampling import SamplingParams
from scheduler.scheduler import Scheduler
from scheduler.stats import SchedulerStats

_EOS = 0
_WORD = 1


@dataclass(slots=True)
class Row:
    """One request to come: it may generate `max_tokens`, and ends by itself after `output_length`."""

    prompt_token_ids: list[int]
    output_length: int
    max_tokens: int


@dataclass(slots=True)
class StepCost:
    """Seconds of a step on the device: once to read the weights, and for each token to compute with them.

    The defaults are about those of 135M parameters in float32 on two CPU cores.
    """

    step: float = 0.036
    token: float = 0.0019


@dataclass(slots=True)
class Report:
    """What a simulation counted. `host_seconds` are the processor's in `schedule` and `update_from_output`, a number
    a step, and `num_running` the requests in it; `device_seconds` is all time of the device by the cost model.
    """

    stats: SchedulerStats = field(default_factory=SchedulerStats)
    num_requests: int = 0
    num_steps: int = 0
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    device_seconds: float = 0.0
    host_seconds: array[float] = field(default_factory=lambda: array("d"))
    num_running: array[int] = field(default_factory=lambda: array("l"))

    def lines(self) -> list[str]:
        """A table, one line a number."""
        stats, steps = self.stats, max(self.num_steps, 1)
        milliseconds = sorted(1e3 * seconds for seconds in self.host_seconds)
        rows = [
            ("requests", f"{self.num_requests:,}"),
            ("steps", f"{self.num_steps:,}"),
            ("prompt tokens", f"{stats.num_prompt_tokens:,}"),
            ("cached tokens", f"{stats.num_cached_tokens:,}"),
            ("output tokens", f"{self.num_output_tokens:,}"),
            ("computed tokens", f"{self.num_computed_tokens:,}"),
            ("preemptions", f"{stats.num_preemptions:,}"),
            ("requests a step, mean", f"{sum(self.num_running) / steps:.1f}"),
            ("tokens a step, mean", f"{self.num_computed_tokens / steps:.1f}"),
            ("device time, modelled", f"{self.device_seconds:,.1f} s"),
            ("host time", f"{sum(milliseconds) / 1e3:,.1f} s"),
            ("host time a step, median", f"{statistics.median(milliseconds):.3f} ms"),
            ("host time a step, 99 %", f"{milliseconds[int(0.99 * (len(milliseconds) - 1))]:.3f} ms"),
        ]
        return [f"{name:<26}{value:>18}" for name, value in rows]


def simulate(scheduler: Scheduler, rows: Iterable[Row], max_waiting: int = 512, cost: StepCost | None = None) -> Report:
    """Run all rows, of which at most `max_waiting` wait at a time."""
    report, device, feed = Report(), _Device(), iter(rows)
    cost = cost or StepCost()
    while True:
        _, num_waiting = scheduler.get_request_counts()
        for row in islice(feed, max(0, max_waiting - num_waiting)):
            request_id = str(report.num_requests)
            report.num_requests += 1
            device.lengths[request_id] = len(row.prompt_token_ids) + row.output_length
            params = SamplingParams(max_tokens=row.max_tokens)
            scheduler.add_request(EngineRequest(request_id, row.prompt_token_ids, params, eos_token_id=_EOS))
        if not scheduler.has_unfinished_requests():
            report.stats = scheduler.get_stats()
            return report
        _step(scheduler, device, report, cost)


def _step(scheduler: Scheduler, device: _Device, report: Report, cost: StepCost) -> None:
    begun = time.thread_time()
    output = scheduler.schedule()
    scheduled = time.thread_time()
    sampled = device.run(output)
    ran = time.thread_time()
    scheduler.update_from_output(output, sampled)
    report.host_seconds.append(scheduled - begun + time.thread_time() - ran)
    report.num_running.append(len(output.num_scheduled_tokens))
    report.num_steps += 1
    report.num_computed_tokens += output.total_num_scheduled_tokens
    report.num_output_tokens += sum(map(len, sampled.sampled_token_ids))
    report.device_seconds += cost.step + cost.token * output.total_num_scheduled_tokens


class _Device:
    """Samples words, and an end of text where a request has reached its length (`lengths`, prompt and output)."""

    def __init__(self) -> None:
        self.lengths: dict[str, int] = {}
        self._num_tokens: dict[str, int] = {}

    def run(self, output: SchedulerOutput) -> ModelRunnerOutput:
        for request_id in output.finished_req_ids:
            del self.lengths[request_id]
            self._num_tokens.pop(request_id, None)
        num_computed = {}
        for new in output.scheduled_new_reqs:
            self._num_tokens[new.req_id] = len(new.prompt_token_ids)
            num_computed[new.req_id] = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        num_computed |= zip(cached.req_ids, cached.num_computed_tokens, strict=True)
        request_ids = list(output.num_scheduled_tokens)
        sampled = [
            self._sample(request_id, num_computed[request_id] + count)
            for request_id, count in output.num_scheduled_tokens.items()
        ]
        return ModelRunnerOutput(request_ids, {id_: i for i, id_ in enumerate(request_ids)}, sampled)

    def _sample(self, request_id: str, num_computed: int) -> list[int]:
        if num_computed < self._num_tokens[request_id]:
            return []
        self._num_tokens[request_id] += 1
        return [_EOS if self._num_tokens[request_id] == self.lengths[request_id] else _WORD]


def mixed_rows(seed: int = 0, max_tokens: int = 512) -> Iterator[Row]:
    """Endless rows with the lengths of conversations: log-normal, prompts of 160 tokens in the median and outputs of
    80, a long tail to 1,024 and to `max_tokens`; nothing is shared.
    """
    rng = random.Random(seed)
    while True:
        prompt_length = min(1024, max(1, round(rng.lognormvariate(5.1, 0.9))))
        output_length = min(max_tokens, max(1, round(rng.lognormvariate(4.4, 0.9))))
        yield Row(_words(rng, prompt_length), output_length, max_tokens)


def prefix_rows(num_prefixes: int, seed: int = 0, prefix_length: int = 512) -> Iterator[Row]:
    """Endless rows that begin with one of `num_prefixes` long prefixes, and end in 32 tokens of their own."""
    rng = random.Random(seed)
    prefixes = [_words(rng, prefix_length) for _ in range(num_prefixes)]
    while True:
        yield Row(rng.choice(prefixes) + _words(rng, 32), 64, 64)


def _words(rng: random.Random, count: int) -> list[int]:
    return array("H", rng.randbytes(2 * count)).tolist()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m scheduler.simulate", description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--prefixes", type=int, default=0, help="begin each prompt with one of so many prefixes")
    parser.add_argument("--policy", choices=[policy.value for policy in SchedulingPolicy], default="fcfs")
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--max-num-batched-tokens", type=int, default=2048)
    parser.add_argument("--num-pages", type=int, default=8192)
    parser.add_argument("--sliding-window", type=int, default=0, help="add a group of layers with such a window")
    parser.add_argument("--max-waiting", type=int, default=512)
    parser.add_argument("--no-prefix-caching", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def _make_scheduler(arguments: argparse.Namespace) -> Scheduler:
    specs: list[PagedSpec] = [FullAttentionSpec(16, 1, 64, "float32")]
    if arguments.sliding_window:
        specs.append(SlidingWindowSpec(16, 1, 64, "float32", arguments.sliding_window))
    limits = SchedulerConfig(
        arguments.max_num_seqs, arguments.max_num_batched_tokens, max_model_len=2048, policy=arguments.policy
    )
    cache = CacheConfig(arguments.num_pages, 16, not arguments.no_prefix_caching)
    groups = CacheGroupsConfig(arguments.num_pages, [CacheGroupSpec(spec) for spec in specs])
    return Scheduler(Config(limits, cache), groups)


def main() -> None:
    arguments = _arguments()
    rows = prefix_rows(arguments.prefixes, arguments.seed) if arguments.prefixes else mixed_rows(arguments.seed)
    report = simulate(_make_scheduler(arguments), islice(rows, arguments.requests), arguments.max_waiting)
    print("\n".join(report.lines()))


if __name__ == "__main__":
    main()
