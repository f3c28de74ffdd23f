"""What every backend of linear layers is given and what it must do.

A weight is a matrix [outputs, inputs], as checkpoints have it; how it is stored is the backend's own.
"""

from __future__ import annotations

from typing import Protocol

import jax
import numpy as np

Shape = tuple[int, ...]


class Linear(Protocol):
    """A backend."""

    def stored_shape(self, outputs: int, inputs: int) -> Shape:
        """The shape of what `store` fills."""
        ...

    def store(self, weight: np.ndarray, first: int, stored: np.ndarray) -> None:
        """Put the outputs `first`, `first` + 1, … of a matrix, [some outputs, inputs], into `stored`, zeros before."""
        ...

    def __call__(self, x: jax.Array, stored: jax.Array, outputs: int, dtype: jax.typing.DTypeLike) -> jax.Array:
        """x @ weight.T of x [rows, inputs]: [rows, outputs] in `dtype`."""
        ...

    def rows_of(self, stored: jax.Array, indices: jax.Array) -> jax.Array:
        """Rows of the matrix, [indices, inputs]: what an embedding needs that is the last layer's weight as well."""
        ...
