"""What the machine's matrix product reaches at its best, which the model's arithmetic is measured by."""

from __future__ import annotations

import time

_SIZES = (1024, 2048, 4096, 8192)
_MIN_PRODUCTS = 3


def gemm_peak(dtype: str, seconds: float = 1.0) -> float:
    """Floating-point operations a second of XLA's product of two square matrices, on the device that the engine has.

    In the engine's own `dtype`, and its precision. The best of all that about `seconds` have time for: a quarter for
    each size, as long as the next one's products are quick enough for that.
    """
    import jax
    import jax.numpy as jnp

    product = jax.jit(lambda a, b: jnp.dot(a, b, precision="highest" if dtype == "float32" else None))
    peak = 0.0
    for size in _SIZES:
        keys = jax.random.split(jax.random.key(size))
        a, b = (jax.random.normal(key, (size, size), dtype) for key in keys)
        jax.block_until_ready(product(a, b))  # compiled
        best, count, end = float("inf"), 0, time.perf_counter() + seconds / 4
        while count < _MIN_PRODUCTS or time.perf_counter() < end:
            start = time.perf_counter()
            jax.block_until_ready(product(a, b))
            best, count = min(best, time.perf_counter() - start), count + 1
        peak = max(peak, 2 * size**3 / best)
        if 8 * best > seconds / 4:
            break
    return peak
