"""Every backend of linear layers, against float64 NumPy."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.linear import cpu
from runner.linear.xla import XlaLinear


def instruction_sets():
    """Those that this machine has; the best one is what "" gives."""
    cpuinfo = Path("/proc/cpuinfo")
    flags = cpuinfo.read_text().split() if cpuinfo.exists() else []
    return ["", "baseline", *(["avx2"] if "avx2" in flags else []), *(["avx512"] if "avx512f" in flags else [])]


BACKENDS = {"xla": XlaLinear()} | (
    {f"native {name or 'best'}": cpu.CpuLinear(name) for name in instruction_sets()} if cpu.is_built() else {}
)
needs_native = pytest.mark.skipif(not cpu.is_built(), reason="built without a compiler")


@pytest.fixture(params=BACKENDS.values(), ids=BACKENDS.keys())
def linear(request):
    return request.param


def random(*shape):
    return np.random.default_rng(shape).normal(size=shape).astype(np.float32)


def stored(linear, weight, cuts=()):
    """The weight as the backend keeps it, put there in the parts that `cuts` makes."""
    out = np.zeros(linear.stored_shape(*weight.shape), np.float32)
    edges = [0, *cuts, len(weight)]
    for first, end in pairwise(edges):
        linear.store(weight[first:end], first, out)
    return out


@partial(jax.jit, static_argnums=(0, 3))
def multiply(linear, x, weight, outputs):
    with jax.default_matmul_precision("highest"):
        return linear(x, weight, outputs, jnp.float32)


def check(linear, rows, inputs, outputs):
    x, weight = random(rows, inputs), random(outputs, inputs)
    exact = x.astype(np.float64) @ weight.astype(np.float64).T
    size = np.abs(x).astype(np.float64) @ np.abs(weight).astype(np.float64).T
    out = multiply(linear, x, stored(linear, weight), outputs)
    # each of the products may be rounded once, and each sum: far less in practice, as errors cancel
    assert (np.abs(out - exact) <= 1e-7 * np.sqrt(inputs) * size + 1e-30).all()


@pytest.mark.parametrize("rows", [1, 2, 5, 6, 7, 8, 9, 15, 16, 17, 100, 255, 256, 257, 300, 1000])
def test_any_number_of_rows(linear, rows):
    check(linear, rows, 70, 112)


@pytest.mark.parametrize("outputs", [1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 96, 1001])
def test_any_number_of_outputs(linear, outputs):
    check(linear, 19, 33, outputs)


@pytest.mark.parametrize("inputs", [1, 2, 16, 383, 384, 385, 768, 1500])
def test_any_number_of_inputs(linear, inputs):
    check(linear, 21, inputs, 50)
    check(linear, 3, inputs, 50)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 300), st.integers(1, 900), st.integers(1, 200))
def test_any_shape(rows, inputs, outputs):
    for linear in BACKENDS.values():
        check(linear, rows, inputs, outputs)


@pytest.mark.parametrize("outputs", [48, 77])
@pytest.mark.parametrize("cuts", [(), (16,), (5, 7), (30, 32), (1, 47)])
def test_a_weight_of_several_tensors(linear, outputs, cuts):
    x, weight = random(4, 20), random(outputs, 20)
    np.testing.assert_array_equal(
        multiply(linear, x, stored(linear, weight, cuts), outputs), multiply(linear, x, stored(linear, weight), outputs)
    )


def test_rows_of_a_stored_weight(linear):
    weight = random(77, 20)
    indices = np.array([0, 76, 15, 16, 40, 40])
    rows = linear.rows_of(jnp.asarray(stored(linear, weight)), jnp.asarray(indices))
    np.testing.assert_array_equal(rows, weight[indices])


@needs_native
@pytest.mark.parametrize("name", instruction_sets())
def test_a_rows_result_does_not_depend_on_its_neighbours(name):
    linear, weight, x = cpu.CpuLinear(name), random(75, 900), random(300, 900)
    panels = stored(linear, weight)
    all_rows = np.asarray(multiply(linear, x, panels, 75))
    for first, end in [(0, 1), (7, 15), (100, 117), (299, 300)]:
        np.testing.assert_array_equal(multiply(linear, x[first:end], panels, 75), all_rows[first:end])


@needs_native
def test_not_a_number_stays_in_its_row_and_infinities_in_theirs():
    x, weight = random(20, 40), random(33, 40)
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
        multiply(cpu.CpuLinear("abacus"), random(4, 40), stored(cpu.CpuLinear(), random(33, 40)), 33)
