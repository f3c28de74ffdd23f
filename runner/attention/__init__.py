"""Attention over pages: one interface, and a backend for each kind of device."""

from __future__ import annotations

import jax

from runner.attention import cpu
from runner.attention.interface import Attention
from runner.attention.xla import XlaAttention


def best_attention() -> Attention:
    """The fastest backend that this device and this installation have."""
    if jax.default_backend() == "cpu" and cpu.is_built():
        return cpu.CpuAttention()
    return XlaAttention()
