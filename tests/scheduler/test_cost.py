"""What the scheduler itself costs: counted rather than timed, where a clock would make the test a matter of luck."""

from __future__ import annotations

import gc
import statistics
import subprocess
import sys
import time
import tracemalloc

import pytest
from scenarios import EOS, add, full, make_scheduler, sampled, step

from scheduler import EngineRequest, SamplingParams, Scheduler


def running(count: int, num_waiting: int = 0, policy: str = "fcfs") -> Scheduler:
    """A scheduler with `count` requests that generate, and others that wait for their seats."""
    scheduler = make_scheduler(full(), max_num_seqs=count, budget=256 * 128, num_pages=60_000, policy=policy)
    for i in range(count + num_waiting):
        prompt = [i, *range(127)]
        add(scheduler, EngineRequest(str(i), prompt, SamplingParams(max_tokens=4000), eos_token_id=[EOS, EOS + 1]))
    step(scheduler)
    return scheduler


def num_operations(scheduler: Scheduler, num_steps: int) -> int:
    """Python function calls of some steps of `schedule` and `update_from_output`."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    gc.disable()  # what it calls (JAX has it call back) is none of the scheduler's
    try:
        for _ in range(num_steps):
            sys.setprofile(count)
            output = scheduler.schedule()
            sys.setprofile(None)
            answer = sampled(output, {request_id: [7] for request_id in output.num_scheduled_tokens})
            sys.setprofile(count)
            scheduler.update_from_output(output, answer)
            sys.setprofile(None)
    finally:
        gc.enable()
    return calls


@pytest.mark.parametrize("policy", ["fcfs", "priority", "offline"])
def test_20_steps_take_the_same_with_1_and_with_20000_waiting(policy: str) -> None:
    assert num_operations(running(16, 1, policy), 20) == num_operations(running(16, 20_000, policy), 20)


def test_a_step_of_256_running_requests_takes_a_few_calls_each() -> None:
    # A page of 16 steps, so that each request takes a page once.
    assert num_operations(running(256), 16) / (16 * 256) < 20


def test_256_running_requests_take_under_2_ms_of_a_processor() -> None:
    """The median is about 0.5 ms on a core of Zen 3, and up to 0.9 where another thread shares the core."""
    scheduler = running(256)
    seconds = []
    for _ in range(64):
        begun = time.thread_time()
        output = scheduler.schedule()
        scheduled = time.thread_time()
        answer = sampled(output, {request_id: [7] for request_id in output.num_scheduled_tokens})
        ran = time.thread_time()
        scheduler.update_from_output(output, answer)
        seconds.append(scheduled - begun + time.thread_time() - ran)
    assert statistics.median(seconds) < 2e-3


@pytest.mark.parametrize("policy", ["fcfs", "priority", "offline"])
def test_a_waiting_request_takes_under_2_kb_beyond_its_prompt(policy: str) -> None:
    scheduler = make_scheduler(policy=policy)
    prompts = [[i % 250] * 100 for i in range(2000)]
    tracemalloc.start()
    for i, prompt in enumerate(prompts):
        scheduler.add_request(EngineRequest(f"request-{i}", prompt, SamplingParams(), eos_token_id=[EOS]))
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used / len(prompts) < 2000


def test_the_scheduler_imports_neither_jax_nor_numpy_nor_transformers() -> None:
    program = (
        "import sys, scheduler, scheduler.simulate; "
        "print(sorted({'jax', 'numpy', 'transformers', 'torch', 'runner', 'esurge_cli'} & set(sys.modules)))"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"
