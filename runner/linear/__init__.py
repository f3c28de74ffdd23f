"""Linear layers: one interface, and a backend for each kind of device."""

from __future__ import annotations

import jax

from runner.dtypes import DTYPES
from runner.linear import cpu
from runner.linear.interface import Linear
from runner.linear.xla import XlaLinear


def best_linear(dtype: str) -> Linear:
    """The fastest backend that this device and this installation have for computing in `dtype`."""
    if jax.default_backend() == "cpu" and cpu.is_built() and dtype in cpu.DTYPES:
        return cpu.CpuLinear(dtype)
    return XlaLinear(DTYPES[dtype])
