"""What every backend of linear layers is given and what it must do.

A weight is a matrix [outputs, inputs], as checkpoints have it; how it is stored is the backend's own.
"""

from __future__ import annotations

from typing import Protocol

import jax
import numpy as np

from runner.models.config import Activation

Shape = tuple[int, ...]


class Linear(Protocol):
    """A backend. `stored` are several layers' weights, [layers, …]; `layer`, an int32 scalar, is the one meant.

    `dtype` is that of the states which it is given, and of all weights that are not matrices.
    """

    dtype: np.dtype

    def stored(self, outputs: int, inputs: int, held: np.dtype) -> tuple[Shape, np.dtype]:
        """The shape and dtype of what `store` fills for one layer; `held` is the dtype of the checkpoint's matrix."""
        ...

    def store(self, weight: np.ndarray, first: int, stored: np.ndarray) -> None:
        """Put the outputs `first`, `first` + 1, … of a matrix, [some outputs, inputs], into `stored`, zeros before."""
        ...

    def __call__(
        self, x: jax.Array, stored: jax.Array, layer: jax.Array, outputs: int, dtype: jax.typing.DTypeLike
    ) -> jax.Array:
        """x @ weight.T of x [rows, inputs]: [rows, outputs] in `dtype`."""
        ...

    def gated(
        self, x: jax.Array, stored: jax.Array, layer: jax.Array, outputs: int, activation: Activation
    ) -> jax.Array:
        """activation(x @ gate.T) * (x @ up.T), the weight being gate and up, one above the other: [rows, outputs]."""
        ...

    def rows_of(self, stored: jax.Array, indices: jax.Array) -> jax.Array:
        """Rows of layer 0, [indices, inputs]: what an embedding needs that is the last layer's weight as well."""
        ...
