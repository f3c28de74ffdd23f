"""Linear layers as XLA's own matrix product: the weight as it is in the checkpoint."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from runner.linear.gate import gate
from runner.linear.interface import Shape
from runner.models.config import Activation


class XlaLinear:
    """See runner.linear.interface.Linear. Weights are stored in the `dtype` that is computed in."""

    def __init__(self, dtype: np.dtype) -> None:
        self.dtype = dtype

    def stored(self, outputs: int, inputs: int, held: np.dtype) -> tuple[Shape, np.dtype]:
        return (outputs, inputs), self.dtype

    def store(self, weight: np.ndarray, first: int, stored: np.ndarray) -> None:
        stored[first : first + len(weight)] = weight

    def __call__(
        self, x: jax.Array, stored: jax.Array, layer: jax.Array, outputs: int, dtype: jax.typing.DTypeLike
    ) -> jax.Array:
        return jnp.einsum("ti,oi->to", x, stored[layer], preferred_element_type=dtype)

    def gated(
        self, x: jax.Array, stored: jax.Array, layer: jax.Array, outputs: int, activation: Activation
    ) -> jax.Array:
        return gate(activation, self(x, stored, layer, 2 * outputs, x.dtype))

    def rows_of(self, stored: jax.Array, indices: jax.Array) -> jax.Array:
        return stored[0, indices]
