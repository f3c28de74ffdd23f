"""The compiled programs: one for each bucket of tokens or sequences, made ahead and counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import jax

from runner.cpus import usable_cpus
from runner.progress import Progress
from runner.weights.wheel import cache_home


def bucket_of(size: int) -> int:
    """The smallest bucket that holds `size`: powers of two from 8 on, and 96.

    Few, for each is a third of a second of every start; 96 because steps of so many tokens, all decoding, are common.
    """
    bucket = 8
    while bucket < size:
        bucket *= 2
    return 96 if bucket == 128 and size <= 96 else bucket


def token_buckets(max_num_batched_tokens: int) -> list[int]:
    """The numbers of tokens that steps within a budget are padded to; 10 of them for a budget of 2,048."""
    buckets = [bucket_of(1)]
    while buckets[-1] < max_num_batched_tokens:
        buckets.append(bucket_of(buckets[-1] + 1))
    return buckets


def enable_compilation_cache() -> None:
    """Keep compiled programs on disk between runs, in JAX's persistent cache (JAX_COMPILATION_CACHE_DIR moves it)."""
    if jax.config.values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_home() / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


class Programs:
    """What each kind of program ("forward", "sample") compiles to at each size; `lower[kind](size)` traces one.

    `num_compilations` counts every program made, ahead or (for a size that was not warmed up) on demand;
    `seconds` is the time that those made ahead took.
    """

    def __init__(self, lower: dict[str, Callable[[int], jax.stages.Lowered]]) -> None:
        self._lower = lower
        self._compiled: dict[tuple[str, int], jax.stages.Compiled] = {}
        self.num_compilations = 0
        self.seconds = 0.0

    def get(self, kind: str, size: int) -> jax.stages.Compiled:
        if (kind, size) not in self._compiled:
            self._keep((kind, size), self._compile((kind, size)))
        return self._compiled[kind, size]

    def compile_all(self, programs: Iterable[tuple[str, int]], progress: Progress) -> None:
        """Compile those that are missing, the largest first, on as many threads as there are cores."""
        start = time.monotonic()
        missing = sorted(set(programs) - set(self._compiled), reverse=True)
        progress("compile", 0, len(missing))
        with ThreadPoolExecutor(usable_cpus()) as threads:
            for done, (program, compiled) in enumerate(
                zip(missing, threads.map(self._compile, missing), strict=True), start=1
            ):
                self._keep(program, compiled)
                progress("compile", done, len(missing))
        self.seconds += time.monotonic() - start

    def _compile(self, program: tuple[str, int]) -> jax.stages.Compiled:
        kind, size = program
        return self._lower[kind](size).compile()

    def _keep(self, program: tuple[str, int], compiled: jax.stages.Compiled) -> None:
        self._compiled[program] = compiled
        self.num_compilations += 1
