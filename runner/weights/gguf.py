"""A GGUF file as a checkpoint: its tensors dequantized one at a time, under transformers' names and in its layout."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, GGMLQuantizationType, dequantize, get_tensor_name_map
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from runner.cpus import usable_cpus
from runner.errors import UserError
from runner.weights.checkpoint import Checkpoint
from runner.weights.gguf_config import ROPE_FREQS, load_config, load_generation_config
from runner.weights.gguf_file import GGUFFile, GGUFTensor, read_gguf

_OUTER = ("model.embed_tokens", "model.norm", "lm_head")
_LAYER = (
    "input_layernorm",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.q_norm",
    "self_attn.k_norm",
    "self_attn.o_proj",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)

_AS_THEY_ARE = {
    GGMLQuantizationType.F32: np.float32,
    GGMLQuantizationType.F16: np.float16,
    GGMLQuantizationType.BF16: ml_dtypes.bfloat16,
}

_CHUNK_BYTES = 4 << 20
"""Dequantized at once by a thread: the gguf package needs a few times as much for itself."""

_MAX_THREADS = 8


class GGUFCheckpoint(Checkpoint):
    """Tensors of f32, f16 and bf16 keep their type, as views of the file where they can be; all others are float32."""

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        self.path = path
        self._file = read_gguf(path)
        self.config: PretrainedConfig = load_config(self._file)
        self.generation_config: dict[str, Any] = load_generation_config(self._file)
        self._names = _tensor_names(self._file, self.config.num_hidden_layers)

    def names(self) -> list[str]:
        return list(self._names)

    def tensor(self, name: str) -> np.ndarray:
        tensor = _read(self.path, name, self._tensor(name))
        match self._file.metadata["general.architecture"]:
            case "llama" if ".q_proj." in name:
                return _halves_from_pairs(tensor, self.config.num_attention_heads)
            case "llama" if ".k_proj." in name:
                return _halves_from_pairs(tensor, self.config.num_key_value_heads)
            case "gemma2" | "gemma3" if name.endswith("norm.weight"):
                return tensor.astype(np.float32) - 1
        return tensor

    def dtype(self, name: str) -> np.dtype:
        return np.dtype(_AS_THEY_ARE.get(self._tensor(name).kind, np.float32))

    def _tensor(self, name: str) -> GGUFTensor:
        if name not in self._names:
            raise UserError(f"{self.path} has no tensor {name}")
        return self._file.tensors[self._names[name]]

    def load_tokenizer(self) -> PreTrainedTokenizerBase:
        from runner.weights.gguf_tokenizer import load_tokenizer

        return load_tokenizer(self._file)


def _tensor_names(file: GGUFFile, num_layers: int) -> dict[str, str]:
    """Transformers' name → the file's. Raises UserError for a tensor that would otherwise be passed over."""
    architecture = next(
        arch for arch, name in MODEL_ARCH_NAMES.items() if name == file.metadata["general.architecture"]
    )
    known = get_tensor_name_map(MODEL_ARCH(architecture), num_layers)
    parts = [*_OUTER, *(f"model.layers.{layer}.{part}" for layer in range(num_layers) for part in _LAYER)]
    names = {
        f"{part}.{kind}": stored
        for part in parts
        for kind in ("weight", "bias")
        if (stored := f"{known.get_name(part)}.{kind}") in file.tensors
    }
    unknown = file.tensors.keys() - names.values() - {ROPE_FREQS}
    if unknown:
        raise UserError(
            f"{file.path} has the tensor {min(unknown)}, which {MODEL_ARCH_NAMES[architecture]} has no use for"
        )
    return names


def _read(path: Path, name: str, tensor: GGUFTensor) -> np.ndarray:
    if tensor.kind in _AS_THEY_ARE:
        dtype = np.dtype(_AS_THEY_ARE[tensor.kind])
        return np.asarray(np.memmap(path, dtype, mode="r", offset=tensor.start, shape=tensor.shape))
    rows = prod(tensor.shape[:-1])
    packed = np.asarray(np.memmap(path, np.uint8, mode="r", offset=tensor.start, shape=(rows, tensor.row_bytes)))
    out = np.empty((rows, tensor.shape[-1]), np.float32)
    step = max(1, _CHUNK_BYTES // out[0].nbytes)

    def unpack(start: int) -> None:
        out[start : start + step] = dequantize(packed[start : start + step], tensor.kind)

    try:
        with ThreadPoolExecutor(min(_MAX_THREADS, usable_cpus())) as threads:
            list(threads.map(unpack, range(0, rows, step)))
    except NotImplementedError as error:
        raise UserError(f"the tensor {name} of {path} is of type {tensor.kind.name}, which cannot be read") from error
    return out.reshape(tensor.shape)


def _halves_from_pairs(tensor: np.ndarray, num_heads: int) -> np.ndarray:
    """Undo the order of rows that llama.cpp's rope wants in a projection of queries or keys.

    It rotates neighbouring pairs of a head's rows, where transformers rotates row i with row i + head_dim / 2.
    """
    pairs = tensor.reshape(num_heads, -1, 2, *tensor.shape[1:])
    return pairs.swapaxes(1, 2).reshape(tensor.shape)
