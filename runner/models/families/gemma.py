"""Gemma 2 and 3: norms before and after each block, stored less one; every other, or five of six, layers slide."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig

from runner.errors import UserError
from runner.models.config import DecoderConfig
from runner.models.families.common import decoder_fields


def gemma2(config: PretrainedConfig) -> DecoderConfig:
    return DecoderConfig(**_gemma_fields(config), attention_soft_cap=config.attn_logit_softcapping)


def gemma3_text(config: PretrainedConfig) -> DecoderConfig:
    """Sliding layers have a rope of their own. transformers does not use the config's `attn_logit_softcapping`."""
    if config.use_bidirectional_attention:
        raise UserError("gemma3_text with bidirectional attention is an encoder, which generates no text")
    return DecoderConfig(**_gemma_fields(config), qk_norm=True)


def _gemma_fields(config: PretrainedConfig) -> dict[str, Any]:
    bias = bool(config.attention_bias)
    return decoder_fields(config, activation=config.hidden_activation) | {
        "attention_scale": config.query_pre_attn_scalar**-0.5,
        "qkv_bias": bias,
        "output_bias": bias,
        "sandwich_norms": True,
        "norm_offset": 1.0,
        "embedding_scale": config.hidden_size**0.5,
        "logit_soft_cap": config.final_logit_softcapping,
    }
