"""Linear layers as one native call each, for CPUs: kernel.cc, through JAX's foreign function interface.

The weight is stored in panels (kernel.h) in the order in which it is read, once for all steps. The call runs on XLA's
own threads, and each row's result is the same to the bit in a batch of any size.
"""

from __future__ import annotations

import jax
import numpy as np

from runner.linear.interface import Shape
from runner.native import NativeCall

_CALL = NativeCall("esurge_linear", __file__)
is_built = _CALL.is_built
_PANEL = 16


class CpuLinear:
    """See runner.linear.interface.Linear. Float32 alone.

    `kernels` names an instruction set (baseline, avx2, avx512) for tests; "" is the best that the machine has.
    """

    def __init__(self, kernels: str = "") -> None:
        _CALL.register()
        self._kernels = kernels

    def stored_shape(self, outputs: int, inputs: int) -> Shape:
        return -(-outputs // _PANEL), inputs, _PANEL

    def store(self, weight: np.ndarray, first: int, stored: np.ndarray) -> None:
        start = 0
        while start < len(weight):
            panel, column = divmod(first + start, _PANEL)
            # whole panels in one go, and what comes before or after them on its own
            count = _PANEL - column if column else max(_PANEL, (len(weight) - start) // _PANEL * _PANEL)
            part = weight[start : start + count]
            if len(part) % _PANEL == 0:
                panels = part.reshape(-1, _PANEL, part.shape[1])
                stored[panel : panel + len(panels)] = panels.transpose(0, 2, 1)
            else:
                stored[panel, :, column : column + len(part)] = part.T
            start += len(part)

    def __call__(self, x: jax.Array, stored: jax.Array, outputs: int, dtype: jax.typing.DTypeLike) -> jax.Array:
        call = jax.ffi.ffi_call(_CALL.name, jax.ShapeDtypeStruct((x.shape[0], outputs), dtype))
        return call(x, stored, kernels=self._kernels)

    def rows_of(self, stored: jax.Array, indices: jax.Array) -> jax.Array:
        return stored[indices // _PANEL, :, indices % _PANEL]
