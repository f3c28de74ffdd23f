"""A Hugging Face folder: config.json, safetensors in one file or in shards, and a tokenizer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from runner.errors import UserError
from runner.weights.checkpoint import Checkpoint
from runner.weights.folder import load_config, load_generation_config, load_tokenizer, read_json

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"

_DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}

_WRAPPERS = {
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "model.",
}
"""Where multimodal checkpoints keep the language model, and what it is called on its own."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies: `start` counts bytes from the beginning of the file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int


class SafetensorsCheckpoint(Checkpoint):
    """Tensors are read-only views of the files, each mapped on its own, so that none stays resident once dropped."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.path = folder
        self.config: PretrainedConfig = load_config(folder)
        self.generation_config: dict[str, Any] = load_generation_config(folder)
        self._tensors = {_text_name(name): tensor for name, tensor in _stored_tensors(folder).items()}

    def names(self) -> list[str]:
        return list(self._tensors)

    def tensor(self, name: str) -> np.ndarray:
        dtype, stored = self.dtype(name), self._tensors[name]
        return np.asarray(np.memmap(stored.file, dtype, mode="r", offset=stored.start, shape=stored.shape))

    def dtype(self, name: str) -> np.dtype:
        stored = self._tensors.get(name)
        if stored is None:
            raise UserError(f"{self.path} has no tensor {name}")
        if stored.dtype not in _DTYPES:
            raise UserError(
                f"the tensor {name} of {self.path} is {stored.dtype}; only {', '.join(_DTYPES)} can be read"
            )
        return np.dtype(_DTYPES[stored.dtype])

    def load_tokenizer(self) -> PreTrainedTokenizerBase:
        return load_tokenizer(self.path)


def _stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of the folder by the name in the file. An index alone decides which files count."""
    index = folder / INDEX
    if index.exists():
        return _indexed_tensors(index)
    single = folder / SINGLE
    if single.exists():
        return _read_header(single)
    if any(folder.glob("*.bin")) or any(folder.glob("*.pth")):
        raise UserError(f"{folder} has PyTorch weights (.bin) only; convert them to {SINGLE}")
    raise UserError(f"{folder} has no weights: it has neither {SINGLE} nor {INDEX}")


def _indexed_tensors(index: Path) -> dict[str, StoredTensor]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise UserError(f"{index} has no weight_map")
    shards: dict[str, dict[str, StoredTensor]] = {}
    for shard in sorted(set(weight_map.values())):
        file = index.parent / shard
        if not file.exists():
            raise UserError(f"{file} is missing, though {INDEX} lists it")
        shards[shard] = _read_header(file)
    for name, shard in weight_map.items():
        if name not in shards[shard]:
            raise UserError(f"{index.parent / shard} has no tensor {name}, though {INDEX} lists it there")
    return {name: shards[shard][name] for name, shard in weight_map.items()}


def _read_header(file: Path) -> dict[str, StoredTensor]:
    """The table at the head of a file: its length in 8 little-endian bytes, then JSON (the format's README says so).

    The safetensors package would copy each tensor, and its NumPy side knows no bfloat16.
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        data_start = 8 + int.from_bytes(stream.read(8), "little")
        if data_start > size:
            raise UserError(f"{file} is cut short, or not a safetensors file")
        try:
            header = json.loads(stream.read(data_start - 8))
            header.pop("__metadata__", None)
            end = data_start + max((entry["data_offsets"][1] for entry in header.values()), default=0)
            tensors = {
                name: StoredTensor(file, entry["dtype"], tuple(entry["shape"]), data_start + entry["data_offsets"][0])
                for name, entry in header.items()
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{file} is damaged, or not a safetensors file") from error
    if end > size:
        raise UserError(f"{file} is cut short: it has {size:,} bytes of {end:,}")
    return tensors


def _text_name(name: str) -> str:
    for wrapper, plain in _WRAPPERS.items():
        if name.startswith(wrapper):
            return plain + name.removeprefix(wrapper)
    return name
