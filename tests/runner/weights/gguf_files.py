"""Writes tiny GGUF files for the tests, in the way of llama.cpp's converter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import AutoModelForCausalLM, PretrainedConfig

_ARCHITECTURES = {"gemma3_text": "gemma3"}
_GEMMAS = ("gemma2", "gemma3_text")

Kind = gguf.GGMLQuantizationType


def write_gguf(
    target: Path,
    folder: Path,
    *,
    kind: Kind = Kind.F32,
    packed: dict[str, tuple[np.ndarray, Kind]] | None = None,
    **metadata: Any,
) -> Path:
    """The model of a Hugging Face folder as a GGUF file with a byte-level tokenizer of as many tokens as it has.

    Matrices are stored as `kind`, all else as F32; `packed` adds tensors, or replaces them, by bytes of their own.
    `metadata` adds keys under the architecture's prefix, or replaces them; None leaves one out.
    """
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config = model.config
    architecture = _ARCHITECTURES.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(target, architecture)
    writer.add_name("tiny")
    keys = _metadata(config) | {key.replace("__", "."): value for key, value in metadata.items()}
    for key, value in keys.items():
        if value is not None:
            _add(writer, f"{architecture}.{key}", value)
    add_tokenizer(writer, [f"<{i}>" for i in range(config.vocab_size)])
    arch = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    tensors = dict(packed or {})
    for name, parameter in model.state_dict().items():
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if stored in tensors or (name == "lm_head.weight" and config.tie_word_embeddings):
            continue
        tensor = _as_llama_cpp(name, parameter.numpy(), config)
        stored_kind = kind if tensor.ndim > 1 else Kind.F32
        tensors[stored] = gguf.quantize(tensor, stored_kind), stored_kind
    for stored, (tensor, stored_kind) in tensors.items():
        writer.add_tensor(stored, tensor, raw_dtype=stored_kind)
    write_all(writer)
    return target


def add_tokenizer(writer: gguf.GGUFWriter, tokens: list[str]) -> None:
    """The least that transformers' own loader asks for."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(tokens))
    writer.add_token_merges([])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)


def write_all(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _metadata(config: PretrainedConfig) -> dict[str, Any]:
    full_rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    keys = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": full_rope["rope_theta"],
    }
    if config.model_type == "qwen2":
        return keys
    if config.model_type == "llama":
        keys["rope.dimension_count"] = config.head_dim
    keys |= {"attention.key_length": config.head_dim, "attention.value_length": config.head_dim}
    if config.model_type in _GEMMAS:
        keys["attention.sliding_window"] = config.sliding_window
    return keys


def _as_llama_cpp(name: str, tensor: np.ndarray, config: PretrainedConfig) -> np.ndarray:
    if config.model_type == "llama" and ("q_proj" in name or "k_proj" in name):
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        halves = tensor.reshape(heads, 2, config.head_dim // 2, *tensor.shape[1:])
        return halves.swapaxes(1, 2).reshape(tensor.shape)
    if config.model_type in _GEMMAS and name.endswith("norm.weight"):
        return tensor + 1
    return tensor


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)
