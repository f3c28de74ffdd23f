"""Linear layers as XLA's own matrix product: the weight as it is in the checkpoint."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from runner.linear.interface import Shape


class XlaLinear:
    """See runner.linear.interface.Linear."""

    def stored_shape(self, outputs: int, inputs: int) -> Shape:
        return outputs, inputs

    def store(self, weight: np.ndarray, first: int, stored: np.ndarray) -> None:
        stored[first : first + len(weight)] = weight

    def __call__(self, x: jax.Array, stored: jax.Array, outputs: int, dtype: jax.typing.DTypeLike) -> jax.Array:
        return jnp.einsum("ti,oi->to", x, stored, preferred_element_type=dtype)

    def rows_of(self, stored: jax.Array, indices: jax.Array) -> jax.Array:
        return stored[indices]
