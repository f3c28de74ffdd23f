"""Llama and Mistral (SmolLM is a Llama)."""

from __future__ import annotations

from transformers import PretrainedConfig

from runner.models.config import DecoderConfig
from runner.models.families.common import SLIDING, decoder_fields, layer_configs


def llama(config: PretrainedConfig) -> DecoderConfig:
    fields = decoder_fields(config, activation=config.hidden_act)
    bias = bool(config.attention_bias)
    return DecoderConfig(**fields, qkv_bias=bias, output_bias=bias, mlp_bias=bool(config.mlp_bias))


def mistral(config: PretrainedConfig) -> DecoderConfig:
    """A `sliding_window`, where there is one, holds for every layer."""
    fields = decoder_fields(config, activation=config.hidden_act)
    if config.sliding_window is not None:
        fields["layers"] = layer_configs(config, [SLIDING] * config.num_hidden_layers)
    return DecoderConfig(**fields)
