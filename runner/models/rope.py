"""Rotary position embedding: frequencies on the host, rotation on the device."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from runner.models.config import RopeConfig, RopeType


def frequencies(rope: RopeConfig, head_dim: int) -> tuple[np.ndarray, float]:
    """Radians a position of each pair of dimensions, float32 [head_dim / 2], and the factor on cosine and sine."""
    base = rope.theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    scaled, attention_factor = _SCALINGS[rope.rope_type](rope, base, head_dim)
    return scaled.astype(np.float32), attention_factor


def _default(rope: RopeConfig, base: np.ndarray, head_dim: int) -> tuple[np.ndarray, float]:
    return base, 1.0


def _linear(rope: RopeConfig, base: np.ndarray, head_dim: int) -> tuple[np.ndarray, float]:
    return base / rope.factor, 1.0


def _llama3(rope: RopeConfig, base: np.ndarray, head_dim: int) -> tuple[np.ndarray, float]:
    """Long wavelengths are stretched, short ones kept, those between interpolated (Llama 3.1's reference code)."""
    turns = rope.original_max_position_embeddings * base / (2 * math.pi)
    kept = np.clip((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0, 1)
    return kept * base + (1 - kept) * base / rope.factor, 1.0


def _yarn(rope: RopeConfig, base: np.ndarray, head_dim: int) -> tuple[np.ndarray, float]:
    """YaRN, "NTK-by-parts" (arXiv:2309.00071, section 3.2), and its attention temperature (section 3.4)."""

    def dimension_of(turns: float) -> float:
        period = rope.original_max_position_embeddings / (turns * 2 * math.pi)
        return head_dim * math.log(period) / (2 * math.log(rope.theta))

    low, high = dimension_of(rope.beta_fast), dimension_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = (np.arange(head_dim // 2) - low) / ((high - low) or 0.001)
    stretched = np.clip(ramp, 0, 1)
    return stretched * base / rope.factor + (1 - stretched) * base, _yarn_attention_factor(rope)


def _yarn_attention_factor(rope: RopeConfig) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor

    def temperature(mscale: float) -> float:
        return 1.0 if rope.factor <= 1 else 0.1 * mscale * math.log(rope.factor) + 1.0

    if rope.mscale and rope.mscale_all_dim:
        return temperature(rope.mscale) / temperature(rope.mscale_all_dim)
    return temperature(1.0)


_SCALINGS = {
    RopeType.DEFAULT: _default,
    RopeType.LINEAR: _linear,
    RopeType.LLAMA3: _llama3,
    RopeType.YARN: _yarn,
}


def rotation(rope: RopeConfig, head_dim: int, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cosine and sine, each float32 [tokens, head_dim / 2], of int32 positions [tokens]."""
    inverse_wavelength, factor = frequencies(rope, head_dim)
    angles = positions[:, None].astype(jnp.float32) * inverse_wavelength
    return jnp.cos(angles) * factor, jnp.sin(angles) * factor


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotate float32 heads [tokens, heads, head_dim]: dimension i pairs with i + head_dim / 2."""
    first, second = jnp.split(x, 2, axis=-1)
    cos, sin = cos[:, None, :], sin[:, None, :]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
