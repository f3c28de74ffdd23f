"""A native call that gets no memory is XLA's error, as of XLA's own operations, and the process lives."""

from __future__ import annotations

import subprocess
import sys

import pytest

from runner.attention import cpu

# a million sequences of one token: what lists the call's tiles is larger than all that it is given and returns
SCRIPT = """
import resource
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from runner.attention.cpu import CpuAttention
from runner.attention.interface import Place, RaggedBatch

COUNT = (1 << 20) + 1
attention = CpuAttention()
cache = attention.empty_cache(1, 2, 1, 1, 1, np.dtype(np.float32))
batch = RaggedBatch(*jax.device_put(
    (np.arange(COUNT + 1, dtype=np.int32), np.ones(COUNT, np.int32), np.ones((1, COUNT, 1), np.int32))
))
place = Place(jnp.int32(0), jnp.int32(0), jnp.int32(1))
ones = jnp.ones((COUNT, 1, 1))
attend = jax.jit(lambda *given: attention(*given, place, (batch, 1), scale=1.0, soft_cap=None)[0])


def step():
    return attend(ones, ones, ones, cache).block_until_ready()


assert (np.asarray(step()) == 1).all()

used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
limits = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (used + (30 << 20), limits[1]))
try:
    step()
except (jax.errors.JaxRuntimeError, ValueError) as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, limits)
assert (np.asarray(step()) == 1).all()
"""


@pytest.mark.skipif(not cpu.is_built() or sys.platform != "linux", reason="native, and Linux's limits")
def test_a_call_without_memory_is_an_error_of_xla():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("RESOURCE_EXHAUSTED: out of memory"), done.stdout
