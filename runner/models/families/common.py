"""What the configs of all families say in the same words."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig

from runner.errors import UserError
from runner.models.config import Activation, LayerConfig, RopeConfig, RopeType

FULL, SLIDING = "full_attention", "sliding_attention"

_ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu": Activation.GELU,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "relu": Activation.RELU,
}

_ROPE_FIELDS = (
    "factor",
    "original_max_position_embeddings",
    "low_freq_factor",
    "high_freq_factor",
    "beta_fast",
    "beta_slow",
    "attention_factor",
    "mscale",
    "mscale_all_dim",
    "truncate",
)


def decoder_fields(config: PretrainedConfig, activation: str) -> dict[str, Any]:
    """The DecoderConfig fields that a Llama-like config states; a family overrides or adds its own."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return {
        "model_type": config.model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_heads": config.num_attention_heads,
        "num_kv_heads": config.num_key_value_heads,
        "head_dim": head_dim,
        "max_position_embeddings": config.max_position_embeddings,
        "layers": layer_configs(config, layer_types(config)),
        "norm_eps": config.rms_norm_eps,
        "activation": activation_of(activation),
        "attention_scale": head_dim**-0.5,
        "tie_word_embeddings": config.tie_word_embeddings,
    }


def layer_types(config: PretrainedConfig) -> list[str]:
    """Each layer's kind of attention, as the config lists it; without a list all layers see everything."""
    return getattr(config, "layer_types", None) or [FULL] * config.num_hidden_layers


def layer_configs(config: PretrainedConfig, kinds: list[str]) -> tuple[LayerConfig, ...]:
    """A LayerConfig for each kind. Raises UserError for a kind that is neither full nor sliding attention."""
    unknown = set(kinds) - {FULL, SLIDING}
    if unknown:
        raise UserError(f"{config.model_type} layers of type {', '.join(sorted(unknown))} are not supported")
    ropes = {kind: rope_config(config, kind) for kind in set(kinds)}
    windows = {FULL: None, SLIDING: config.sliding_window if SLIDING in kinds else None}
    return tuple(LayerConfig(rope=ropes[kind], window=windows[kind]) for kind in kinds)


def rope_config(config: PretrainedConfig, kind: str) -> RopeConfig:
    """The rotary embedding of one kind of layer: `rope_parameters` holds one for all kinds, or one for each."""
    parameters: dict[str, Any] = config.rope_parameters
    parameters = parameters.get(kind, parameters)
    name = parameters.get("rope_type", "default")
    if name not in RopeType.__members__.values():
        raise UserError(f"the rope type {name!r} is not supported; supported are: {', '.join(RopeType)}")
    if parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise UserError(f"{config.model_type} with a partial rotary embedding is not supported")
    fields = {key: parameters[key] for key in _ROPE_FIELDS if parameters.get(key) is not None}
    fields.setdefault("original_max_position_embeddings", config.max_position_embeddings)
    return RopeConfig(theta=float(parameters["rope_theta"]), rope_type=RopeType(name), **fields)


def activation_of(name: str) -> Activation:
    """Raises UserError for an activation that the decoder does not have."""
    if name not in _ACTIVATIONS:
        raise UserError(f"the activation {name!r} is not supported; supported are: {', '.join(sorted(_ACTIVATIONS))}")
    return _ACTIVATIONS[name]
