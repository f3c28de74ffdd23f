"""A checkpoint: the config, the tensors and the tokenizer of one model, whatever kind of file holds them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.errors import UserError
from runner.progress import Progress, no_progress
from runner.weights.resolve import resolve_model

if TYPE_CHECKING:
    import numpy as np
    from transformers import PretrainedConfig, PreTrainedTokenizerBase


class Checkpoint(ABC):
    """A model on disk, opened but not read: tensors are mapped, or dequantized, when they are asked for.

    `config` is the language model's own, also where the folder holds a multimodal one. `generation_config` has the
    plain values of the file of that name, or what a GGUF's metadata says instead; it may be empty.
    """

    name: str
    path: Path
    config: PretrainedConfig
    generation_config: dict[str, Any]

    @abstractmethod
    def names(self) -> list[str]:
        """Every tensor, as transformers' causal language model calls it."""

    @abstractmethod
    def tensor(self, name: str) -> np.ndarray:
        """One tensor in transformers' layout and values, in the file's dtype, or float32 where the file is quantized.

        It may be a read-only view of the file, which stays mapped as long as the array lives. Raises UserError where
        there is no such tensor.
        """

    @abstractmethod
    def dtype(self, name: str) -> np.dtype:
        """What `tensor` will be of, which is known without reading it. Raises UserError as that does."""

    @abstractmethod
    def load_tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer with its chat template. Raises UserError where the checkpoint has none that can be read."""

    def stop_token_ids(self, tokenizer: PreTrainedTokenizerBase) -> set[int]:
        """Every token that ends a text: the tokenizer, the config and the generation config may each name others."""
        sources = (
            tokenizer.eos_token_id,
            getattr(self.config, "eos_token_id", None),
            self.generation_config.get("eos_token_id"),
        )
        return {token_id for source in sources for token_id in _token_ids(source)}


def open_checkpoint(
    model: str | Path | None, revision: str | None = None, progress: Progress = no_progress
) -> Checkpoint:
    """Open a Hugging Face folder, a `.gguf` file, a Hub id, or (None) the default model, fetching what isn't here.

    Raises UserError where there is no such model, or it cannot be read.
    """
    location = resolve_model(model, revision, progress)
    if location.path.is_dir():
        from runner.weights.safetensors import SafetensorsCheckpoint

        return SafetensorsCheckpoint(location.path, location.name)
    if location.path.suffix == ".gguf":
        from runner.weights.gguf import GGUFCheckpoint

        return GGUFCheckpoint(location.path, location.name)
    raise UserError(f"{location.path} is neither a folder nor a .gguf file")


def _token_ids(value: int | Iterable[int] | None) -> Iterable[int]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else value
