"""A gated unit's non-linearity, by XLA."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from runner.models.config import Activation

_ACTIVATIONS: dict[Activation, Callable[[jax.Array], jax.Array]] = {
    Activation.SILU: jax.nn.silu,
    Activation.GELU: partial(jax.nn.gelu, approximate=False),
    Activation.GELU_TANH: partial(jax.nn.gelu, approximate=True),
    Activation.RELU: jax.nn.relu,
}


def gate(activation: Activation, gate_up: jax.Array) -> jax.Array:
    """activation(first half) * second half of each row (GLU, arXiv:2002.05202): [rows, 2 n] → [rows, n]."""
    first, second = jnp.split(gate_up, 2, axis=-1)
    return _ACTIVATIONS[activation](first) * second
