"""Linear layers as one native call each, for CPUs: kernel.cc, through JAX's foreign function interface.

Weights are stored in panels (kernel.h) in the order in which they are read, once for all steps, and a bfloat16
checkpoint's as they are: half the memory to read, for the same float32 result. The call runs on XLA's own threads, and
each row's result is the same to the bit in a batch of any size.

To compute in bfloat16 is to round weights to it, and where there is AMX the states that go into a product, which is a
third of the work then; states and sums are float32 all the same.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from runner.linear.gate import gate
from runner.linear.interface import Shape
from runner.models.config import Activation
from runner.native import NativeCall

DTYPES = ("float32", "bfloat16")
_CALL = NativeCall("esurge_linear", __file__)
is_built = _CALL.is_built
_PANEL = 16
_PAIRED_INPUTS = 32
_PAIR = np.dtype(np.uint32)
"""Two inputs of one output, bfloat16 each."""

_NO_ACTIVATION = 0
_ACTIVATIONS = {Activation.SILU: 1, Activation.GELU_TANH: 2}
"""Those that the kernels have, and their numbers there."""


class CpuLinear:
    """See runner.linear.interface.Linear. `compute_dtype` is one of DTYPES.

    `kernels` names an instruction set (baseline, avx2, avx512, amx) for tests; "" is the best that the machine has.
    """

    dtype = np.dtype(np.float32)

    def __init__(self, compute_dtype: str = "float32", kernels: str = "") -> None:
        _CALL.register()
        self._rounds = compute_dtype == "bfloat16"
        self._kernels = kernels

    def stored(self, outputs: int, inputs: int, held: np.dtype) -> tuple[Shape, np.dtype]:
        panels = -(-outputs // _PANEL)
        if (self._rounds or held == ml_dtypes.bfloat16) and inputs % _PAIRED_INPUTS == 0:
            return (panels, inputs // 2, _PANEL), _PAIR
        return (panels, inputs, _PANEL), self.dtype

    def store(self, weight: np.ndarray, first: int, stored: np.ndarray) -> None:
        if stored.dtype == _PAIR:
            weight = weight.astype(ml_dtypes.bfloat16, copy=False).view(_PAIR)
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

    def __call__(
        self, x: jax.Array, stored: jax.Array, layer: jax.Array, outputs: int, dtype: jax.typing.DTypeLike
    ) -> jax.Array:
        return self._call(x, stored, layer, outputs, _NO_ACTIVATION)

    def gated(
        self, x: jax.Array, stored: jax.Array, layer: jax.Array, outputs: int, activation: Activation
    ) -> jax.Array:
        if activation in _ACTIVATIONS and outputs % _PANEL == 0:
            return self._call(x, stored, layer, outputs, _ACTIVATIONS[activation])
        return gate(activation, self._call(x, stored, layer, 2 * outputs, _NO_ACTIVATION))

    def rows_of(self, stored: jax.Array, indices: jax.Array) -> jax.Array:
        rows = stored[0, indices // _PANEL, :, indices % _PANEL]
        if stored.dtype == _PAIR:
            rows = jax.lax.bitcast_convert_type(rows, jnp.bfloat16).reshape(len(rows), -1)
        return rows.astype(jnp.float32)

    def _call(self, x: jax.Array, stored: jax.Array, layer: jax.Array, outputs: int, activation: int) -> jax.Array:
        call = jax.ffi.ffi_call(_CALL.name, jax.ShapeDtypeStruct((x.shape[0], outputs), jnp.float32))
        return call(
            x, stored, layer, kernels=self._kernels, activation=np.int64(activation), rounds=np.bool_(self._rounds)
        )
