"""From a GGUF file's metadata to the config that transformers would have for the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from transformers import AutoConfig, PretrainedConfig

from runner.errors import UserError
from runner.weights.folder import first_line
from runner.weights.gguf_file import GGUFFile

ROPE_FREQS = "rope_freqs.weight"
"""Llama 3's rope scaling, as a divisor of each frequency [head_dim / 2] instead of as metadata."""

_GEMMA3_LOCAL_THETA = 10000.0
_GEMMA2_PERIOD, _GEMMA3_PERIOD = 2, 6
_GEMMA2_27B_LAYERS, _GEMMA3_27B_LAYERS = 46, 62

_LLAMA3_CONTEXT, _LLAMA3_LOW, _LLAMA3_HIGH = 8192, 1.0, 4.0
"""Original context, and the turns within it between which a frequency is scaled in part: all of Llama 3.1 to 3.3."""

_SAMPLING = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}

_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>")
"""How chat templates end a turn; older files name such a token nowhere else."""


class _Keys:
    """The metadata under the architecture's own prefix."""

    def __init__(self, file: GGUFFile) -> None:
        self.architecture: str = file.metadata["general.architecture"]
        self._file = file

    def __contains__(self, key: str) -> bool:
        return f"{self.architecture}.{key}" in self._file.metadata

    def __getitem__(self, key: str) -> Any:
        if key not in self:
            raise UserError(f"{self._file.path} has no {self.architecture}.{key} in its metadata")
        value = self._file.metadata[f"{self.architecture}.{key}"]
        if isinstance(value, np.ndarray):
            if len(set(value.tolist())) != 1:
                raise UserError(f"{self._file.path} has layers that differ in {key}, which is not supported")
            return value[0].item()
        return value

    def get(self, key: str, default: Any) -> Any:
        return self[key] if key in self else default  # noqa: SIM401 - this is what get means


def load_config(file: GGUFFile) -> PretrainedConfig:
    """The config. Raises UserError for an architecture, or a part of one, that is not supported."""
    architecture = file.metadata.get("general.architecture")
    if architecture not in _ARCHITECTURES:
        raise UserError(
            f"{file.path} has the architecture {architecture!r}; GGUF files of these can be read: "
            f"{', '.join(_ARCHITECTURES)}"
        )
    keys = _Keys(file)
    if keys.get("expert_count", 0):
        raise UserError(f"{file.path} is a mixture of experts, which is not supported")
    model_type, differences = _ARCHITECTURES[architecture]
    fields = _common_fields(file, keys) | differences(file, keys)
    try:
        return AutoConfig.for_model(model_type, **fields)
    except Exception as error:  # of many types, as each config class validates in its own way
        raise UserError(f"{file.path} describes no possible {model_type}: {first_line(error)}") from error


def load_generation_config(file: GGUFFile) -> dict[str, Any]:
    """The sampling that the file recommends, and the tokens that end a text or a turn of a chat."""
    metadata = file.metadata
    values = {name: metadata[key] for key, name in _SAMPLING.items() if key in metadata}
    ends = [
        metadata[key] for key in (f"tokenizer.ggml.{end}_token_id" for end in ("eos", "eot", "eom")) if key in metadata
    ]
    template = metadata.get("tokenizer.chat_template", "")
    tokens = metadata.get("tokenizer.ggml.tokens", [])
    ends += [tokens.index(token) for token in _TURN_ENDS if token in template and token in tokens]
    if ends:
        values["eos_token_id"] = sorted(set(ends))
    return values


def _common_fields(file: GGUFFile, keys: _Keys) -> dict[str, Any]:
    if "token_embd.weight" not in file.tensors:
        raise UserError(f"{file.path} has no tensor token_embd.weight")
    return {
        "hidden_size": keys["embedding_length"],
        "intermediate_size": keys["feed_forward_length"],
        "num_hidden_layers": keys["block_count"],
        "num_attention_heads": keys["attention.head_count"],
        "num_key_value_heads": keys.get("attention.head_count_kv", keys["attention.head_count"]),
        "rms_norm_eps": keys["attention.layer_norm_rms_epsilon"],
        "max_position_embeddings": keys["context_length"],
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "rope_parameters": _rope(file, keys),
        # None, where the file says nothing: transformers' defaults are another model's.
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": file.metadata.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": file.metadata.get("tokenizer.ggml.padding_token_id"),
    }


def _llama(file: GGUFFile, keys: _Keys) -> dict[str, Any]:
    return {
        "head_dim": _head_dim(file, keys),
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in file.tensors,
    }


def _qwen2(file: GGUFFile, keys: _Keys) -> dict[str, Any]:
    return {"head_dim": _head_dim(file, keys)}


def _qwen3(file: GGUFFile, keys: _Keys) -> dict[str, Any]:
    return {"head_dim": _head_dim(file, keys), "attention_bias": "blk.0.attn_q.bias" in file.tensors}


def _gemma2(file: GGUFFile, keys: _Keys) -> dict[str, Any]:
    return _gemma(file, keys, period=_GEMMA2_PERIOD, largest=_GEMMA2_27B_LAYERS) | {
        "attn_logit_softcapping": keys.get("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": keys.get("final_logit_softcapping", 30.0),
    }


def _gemma3(file: GGUFFile, keys: _Keys) -> dict[str, Any]:
    """The sliding layers have a rope of their own, which is never scaled."""
    sliding = {"rope_type": "default", "rope_theta": keys.get("rope.freq_base_swa", _GEMMA3_LOCAL_THETA)}
    return _gemma(file, keys, period=_GEMMA3_PERIOD, largest=_GEMMA3_27B_LAYERS) | {
        "rope_parameters": {"full_attention": _rope(file, keys), "sliding_attention": sliding},
        "final_logit_softcapping": keys.get("final_logit_softcapping", None),
    }


def _gemma(file: GGUFFile, keys: _Keys, *, period: int, largest: int) -> dict[str, Any]:
    """The last of each `period` layers sees everything. The model of `largest` layers scales its scores otherwise."""
    layers, head_dim, window = keys["block_count"], _head_dim(file, keys), keys.get("attention.sliding_window", None)
    slides = [window is not None and (layer + 1) % period != 0 for layer in range(layers)]
    width = keys["embedding_length"] // keys["attention.head_count"]
    return {
        "head_dim": head_dim,
        "query_pre_attn_scalar": width if layers == largest else head_dim,
        "sliding_window": window,
        "layer_types": ["sliding_attention" if sliding else "full_attention" for sliding in slides],
    }


_ARCHITECTURES: dict[str, tuple[str, Callable[[GGUFFile, _Keys], dict[str, Any]]]] = {
    "llama": ("llama", _llama),
    "qwen2": ("qwen2", _qwen2),
    "qwen3": ("qwen3", _qwen3),
    "gemma2": ("gemma2", _gemma2),
    "gemma3": ("gemma3_text", _gemma3),
}


def _head_dim(file: GGUFFile, keys: _Keys) -> int:
    head_dim = keys.get("attention.key_length", keys["embedding_length"] // keys["attention.head_count"])
    if keys.get("attention.value_length", head_dim) != head_dim:
        raise UserError(f"{file.path} has keys and values of different lengths, which is not supported")
    if keys.get("rope.dimension_count", head_dim) != head_dim:
        raise UserError(f"{file.path} rotates only a part of each head, which is not supported")
    return head_dim


def _rope(file: GGUFFile, keys: _Keys) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": keys.get("rope.freq_base", 10000.0)}
    if ROPE_FREQS in file.tensors:
        return rope | _llama3_scaling(file, keys, rope["rope_theta"])
    kind = keys.get("rope.scaling.type", "none")
    if kind == "none":
        return rope
    if kind not in ("linear", "yarn"):
        raise UserError(f"{file.path} has a rope scaling of type {kind!r}, which is not supported")
    rope |= {"rope_type": kind, "factor": keys["rope.scaling.factor"]}
    if kind == "yarn":
        rope["original_max_position_embeddings"] = keys["rope.scaling.original_context_length"]
        unknown = [
            key for key in ("attn_factor", "yarn_log_multiplier", "yarn_attn_factor") if f"rope.scaling.{key}" in keys
        ]
        if unknown:
            raise UserError(f"{file.path} has YaRN's {', '.join(unknown)}, which is not supported")
        for name in ("beta_fast", "beta_slow"):
            if f"rope.scaling.yarn_{name}" in keys:
                rope[name] = keys[f"rope.scaling.yarn_{name}"]
    return rope


def _llama3_scaling(file: GGUFFile, keys: _Keys, theta: float) -> dict[str, Any]:
    """Llama 3's parameters, which the divisors must then agree with."""
    tensor = file.tensors[ROPE_FREQS]
    divisors = np.fromfile(file.path, np.float32, count=tensor.shape[0], offset=tensor.start)
    factor = round(float(divisors.max()), 3)  # a plain number, before it was divided in float32
    head_dim = _head_dim(file, keys)
    frequencies = theta ** -(np.arange(0, head_dim, 2) / head_dim)
    turns = _LLAMA3_CONTEXT * frequencies / (2 * np.pi)
    kept = np.clip((turns - _LLAMA3_LOW) / (_LLAMA3_HIGH - _LLAMA3_LOW), 0, 1)
    expected = 1 / (kept + (1 - kept) / factor)
    if divisors.shape != expected.shape or not np.allclose(divisors, expected, rtol=1e-3):
        raise UserError(f"{file.path} scales its rope by {ROPE_FREQS} in a way that is not Llama 3's")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "original_max_position_embeddings": _LLAMA3_CONTEXT,
        "low_freq_factor": _LLAMA3_LOW,
        "high_freq_factor": _LLAMA3_HIGH,
    }
