"""Attention over pages: one interface, and a backend for each kind of device."""

from __future__ import annotations

import jax

from runner.attention import cpu
from runner.attention.interface import Attention
from runner.attention.xla import XlaAttention


def best_attention(cache_dtype: str) -> Attention:
    """The fastest backend that this device and this installation have for pages of `cache_dtype`."""
    if jax.default_backend() == "cpu" and cpu.is_built() and cache_dtype in cpu.CACHE_DTYPES:
        return cpu.CpuAttention()
    return XlaAttention()
