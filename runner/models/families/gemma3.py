"""Gemma 3: norms before and after each block, stored less one; sliding layers have a rope of their own."""

from __future__ import annotations

from transformers import PretrainedConfig

from runner.errors import UserError
from runner.models.config import DecoderConfig
from runner.models.families.common import decoder_fields


def gemma3_text(config: PretrainedConfig) -> DecoderConfig:
    if config.use_bidirectional_attention:
        raise UserError("gemma3_text with bidirectional attention is an encoder, which generates no text")
    fields = decoder_fields(config, activation=config.hidden_activation)
    fields["attention_scale"] = config.query_pre_attn_scalar**-0.5
    bias = bool(config.attention_bias)
    return DecoderConfig(
        **fields,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
        sandwich_norms=True,
        norm_offset=1.0,
        embedding_scale=config.hidden_size**0.5,
        attention_soft_cap=config.attn_logit_softcapping,
        logit_soft_cap=config.final_logit_softcapping,
    )
