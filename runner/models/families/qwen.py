"""Qwen2 (biased projections) and Qwen3 (normed queries and keys)."""

from __future__ import annotations

from transformers import PretrainedConfig

from runner.models.config import DecoderConfig
from runner.models.families.common import decoder_fields


def qwen2(config: PretrainedConfig) -> DecoderConfig:
    return DecoderConfig(**decoder_fields(config, activation=config.hidden_act), qkv_bias=True)


def qwen3(config: PretrainedConfig) -> DecoderConfig:
    bias = bool(config.attention_bias)
    fields = decoder_fields(config, activation=config.hidden_act)
    return DecoderConfig(**fields, qkv_bias=bias, output_bias=bias, qk_norm=True)
