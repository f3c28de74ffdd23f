"""Rotary frequencies, against transformers' own."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from runner.errors import UserError
from runner.models.families.common import FULL, rope_config
from runner.models.rope import frequencies

ROPES = [
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    | {"original_max_position_embeddings": 8192},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "beta_fast": 20, "beta_slow": 2}
    | {"mscale": 0.707, "mscale_all_dim": 0.9},
    {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512, "attention_factor": 1.3}
    | {"truncate": False},
]


def config(rope, head_dim=128, theta=500000.0):
    parameters = {"rope_theta": theta} | rope
    return LlamaConfig(
        hidden_size=head_dim * 4, num_attention_heads=4, head_dim=head_dim, rope_parameters=parameters,
        max_position_embeddings=131072,
    )  # fmt: skip


@pytest.mark.parametrize("rope", ROPES, ids=lambda rope: f"{rope['rope_type']} {rope['factor']:g}")
@pytest.mark.parametrize("head_dim", [64, 128])
def test_frequencies_are_those_of_transformers(rope, head_dim):
    hf = config(rope, head_dim)
    expected, expected_factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](hf, "cpu")
    got, factor = frequencies(rope_config(hf, FULL), head_dim)
    np.testing.assert_allclose(got, expected.numpy(), rtol=1e-5)
    assert factor == pytest.approx(expected_factor)


def test_an_unknown_type_is_named_with_those_that_are_known():
    hf = config({"rope_type": "default"})
    hf.rope_parameters = {"rope_type": "spiral", "rope_theta": 1e4}
    with pytest.raises(UserError, match=r"the rope type 'spiral' is not supported; supported are: default, linear"):
        rope_config(hf, FULL)


def test_a_partial_rotation_is_refused():
    hf = config({"rope_type": "default"})
    hf.rope_parameters = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    with pytest.raises(UserError, match="partial rotary"):
        rope_config(hf, FULL)
