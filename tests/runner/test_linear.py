"""Every backend of linear layers, against float64 NumPy."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instructions import instruction_sets

from runner.dtypes import DTYPES
from runner.linear import cpu
from runner.linear.xla import XlaLinear
from runner.models.config import Activation

FLOAT32, BFLOAT16 = DTYPES["float32"], DTYPES["bfloat16"]
BACKENDS = {"xla": XlaLinear(FLOAT32)} | (
    {f"native {name or 'best'}": cpu.CpuLinear(kernels=name) for name in instruction_sets()} if cpu.is_built() else {}
)
needs_native = pytest.mark.skipif(not cpu.is_built(), reason="built without a compiler")


@pytest.fixture(params=BACKENDS.values(), ids=BACKENDS.keys())
def linear(request):
    return request.param


def random(*shape, dtype=FLOAT32):
    return np.random.default_rng(shape).normal(size=shape).astype(dtype)


def stored(linear, weight, cuts=()):
    """The weight as the backend keeps it, put there in the parts that `cuts` makes; the second layer of two."""
    shape, dtype = linear.stored(*weight.shape, weight.dtype)
    out = np.zeros((2, *shape), dtype)
    edges = [0, *cuts, len(weight)]
    for first, end in pairwise(edges):
        linear.store(weight[first:end], first, out[1])
    return out


@partial(jax.jit, static_argnums=(0, 3))
def multiply(linear, x, weight, outputs):
    with jax.default_matmul_precision("highest"):
        return linear(x, weight, jnp.int32(1), outputs, jnp.float32)


def check(linear, rows, inputs, outputs, dtype=FLOAT32):
    x, weight = random(rows, inputs), random(outputs, inputs, dtype=dtype)
    exact = x.astype(np.float64) @ weight.astype(np.float64).T
    size = np.abs(x).astype(np.float64) @ np.abs(weight).astype(np.float64).T
    out = multiply(linear, x, stored(linear, weight), outputs)
    # each of the products may be rounded once, and each sum: far less in practice, as errors cancel
    assert (np.abs(out - exact) <= 1e-7 * np.sqrt(inputs) * size + 1e-30).all()


@pytest.mark.parametrize("rows", [1, 2, 5, 6, 7, 8, 9, 15, 16, 17, 100, 255, 256, 257, 300, 1000])
def test_any_number_of_rows(linear, rows):
    check(linear, rows, 70, 112)
    check(linear, rows, 64, 112, BFLOAT16)


@pytest.mark.parametrize("outputs", [1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 96, 1001])
def test_any_number_of_outputs(linear, outputs):
    check(linear, 19, 33, outputs)
    check(linear, 19, 32, outputs, BFLOAT16)


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=str)
@pytest.mark.parametrize("inputs", [1, 2, 16, 32, 96, 256, 288, 383, 384, 385, 768, 1500, 1536])
def test_any_number_of_inputs(linear, inputs, dtype):
    check(linear, 21, inputs, 50, dtype)
    check(linear, 3, inputs, 50, dtype)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 300), st.integers(1, 30), st.sampled_from([1, 7, 32]), st.integers(1, 200))
def test_any_shape(rows, inputs, unit, outputs):
    for linear in BACKENDS.values():
        check(linear, rows, inputs * unit, outputs, BFLOAT16 if unit == 32 else FLOAT32)


ACTIVATIONS = {
    Activation.SILU: lambda x: x / (1 + np.exp(-x)),
    Activation.GELU: lambda x: x / 2 * (1 + np.vectorize(math.erf)(x / np.sqrt(2))),
    Activation.GELU_TANH: lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    Activation.RELU: lambda x: np.maximum(x, 0),
}


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=str)
@pytest.mark.parametrize(("rows", "outputs"), [(1, 176), (40, 77), (300, 16)])
@pytest.mark.parametrize("activation", Activation)
def test_a_gate(linear, activation, rows, outputs, dtype):
    x, weight = random(rows, 96), (random(2 * outputs, 96) / 10).astype(dtype)
    gated = jax.jit(linear.gated, static_argnums=(3, 4))
    with jax.default_matmul_precision("highest"):
        out = gated(x, stored(linear, weight), jnp.int32(1), outputs, activation)
    first, second = np.split(x.astype(np.float64) @ weight.astype(np.float64).T, 2, axis=1)
    np.testing.assert_allclose(out, ACTIVATIONS[activation](first) * second, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("outputs", [48, 77])
@pytest.mark.parametrize("cuts", [(), (16,), (5, 7), (30, 32), (1, 47)])
def test_a_weight_of_several_tensors(linear, outputs, cuts):
    x, weight = random(4, 20), random(outputs, 20)
    np.testing.assert_array_equal(
        multiply(linear, x, stored(linear, weight, cuts), outputs), multiply(linear, x, stored(linear, weight), outputs)
    )


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=str)
def test_rows_of_a_stored_weight(linear, dtype):
    weight = random(77, 64, dtype=dtype)
    indices = np.array([0, 76, 15, 16, 40, 40])
    rows = linear.rows_of(jnp.asarray(stored(linear, weight)[1:]), jnp.asarray(indices))
    np.testing.assert_array_equal(rows, weight[indices])


@needs_native
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=str)
@pytest.mark.parametrize("name", instruction_sets())
def test_a_rows_result_does_not_depend_on_its_neighbours(name, dtype):
    linear, weight, x = cpu.CpuLinear(kernels=name), random(75, 928, dtype=dtype), random(300, 928)
    panels = stored(linear, weight)
    all_rows = np.asarray(multiply(linear, x, panels, 75))
    for first, end in [(0, 1), (7, 15), (100, 117), (299, 300)]:
        np.testing.assert_array_equal(multiply(linear, x[first:end], panels, 75), all_rows[first:end])


@needs_native
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=str)
def test_not_a_number_stays_in_its_row_and_infinities_in_theirs(dtype):
    x, weight = random(20, 64), random(33, 64, dtype=dtype)
    x[3, 5], x[11, 0] = np.nan, np.inf
    out = np.asarray(multiply(cpu.CpuLinear(), x, stored(cpu.CpuLinear(), weight), 33))
    assert np.isnan(out[3]).all() and np.isinf(out[11]).all()
    assert np.isfinite(np.delete(out, [3, 11], axis=0)).all()


@needs_native
def test_a_weight_of_another_shape_is_refused():
    panels = stored(cpu.CpuLinear(), random(33, 40))
    with pytest.raises(Exception, match="another shape"):
        multiply(cpu.CpuLinear(), random(4, 40), panels, 50)


@needs_native
def test_instructions_that_do_not_exist_are_refused():
    with pytest.raises(Exception, match="no such instructions"):
        multiply(cpu.CpuLinear(kernels="abacus"), random(4, 40), stored(cpu.CpuLinear(), random(33, 40)), 33)


@needs_native
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=str)
@pytest.mark.parametrize("rows", [1, 33, 300])
def test_in_bfloat16_weights_are_rounded_and_states_may_be(rows, dtype):
    linear, x, weight = cpu.CpuLinear("bfloat16"), random(rows, 96), random(50, 96, dtype=dtype)
    x[0, :3] = np.nan, np.inf, 1e-30
    out = np.asarray(multiply(linear, x, stored(linear, weight), 50), np.float64)
    weight = weight.astype(BFLOAT16).astype(np.float64)
    sums = [values.astype(np.float64)[1:] @ weight.T for values in (x, x.astype(BFLOAT16))]
    assert min(np.abs(out[1:] - exact).max(initial=0) for exact in sums) < 1e-4
    assert np.isnan(out[0]).all()


@needs_native
def test_rounding_states_is_to_nearest_even():
    """As ml_dtypes rounds, where the machine rounds at all: half-way cases of either kind, and the largest."""
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0xBF817FFF, 0x7F7FFFFF, 0x00800000, 0x80000000], np.uint32)
    x = np.zeros((7, 32), np.float32)
    x[:, 4] = bits.view(np.float32)
    linear, weight = cpu.CpuLinear("bfloat16"), np.eye(32, dtype=BFLOAT16)
    out = np.asarray(multiply(linear, x, stored(linear, weight), 32))[:, 4]
    rounded = x[:, 4].astype(BFLOAT16).astype(np.float32)
    assert np.array_equal(out, rounded) or np.array_equal(out, x[:, 4])
