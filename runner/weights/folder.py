"""What transformers reads of a Hugging Face folder, with its errors turned into one line each.

No code from a checkpoint is ever run: `trust_remote_code` stays off.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING, AutoConfig, AutoTokenizer, PretrainedConfig, PreTrainedTokenizerBase

from runner.errors import UserError

TOKENIZER_FILES = ["tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json"]


def load_config(folder: Path) -> PretrainedConfig:
    """The language model's config. Raises UserError where it is missing, damaged or of an unknown model."""
    if not (folder / "config.json").exists():
        raise UserError(_why_no_model(folder))
    values = read_json(folder / "config.json")
    model_type = values.get("model_type")
    if model_type is None:
        raise UserError(f"{folder / 'config.json'} names no model_type")
    if model_type not in CONFIG_MAPPING:
        if "auto_map" in values:
            raise UserError(f"{folder} needs Python code of its own (trust_remote_code), which esurge never runs")
        raise UserError(f"{folder / 'config.json'} has the model_type {model_type!r}, which transformers does not know")
    quantization = values.get("quantization_config")
    if quantization is not None:
        method = quantization.get("quant_method", "an unnamed method")
        raise UserError(f"{folder} is quantized by {method}; take the model in bf16, f16 or f32, or as a GGUF file")
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # of many types, as each config class validates in its own way
        raise UserError(f"{folder / 'config.json'} cannot be read: {first_line(error)}") from error
    return config.get_text_config(decoder=True)


def load_generation_config(folder: Path) -> dict[str, Any]:
    """The values of generation_config.json; none where the file is missing."""
    file = folder / "generation_config.json"
    return read_json(file) if file.exists() else {}


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Raises UserError where the folder has no tokenizer, or one that needs a package or code that isn't here."""
    if not has_tokenizer(folder):
        raise UserError(
            f"{folder} has no tokenizer (none of {', '.join(TOKENIZER_FILES)}); name another one with --tokenizer"
        )
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # whatever the tokenizer's class raises
        raise UserError(f"the tokenizer of {folder} cannot be read: {first_line(error)}") from error


def has_tokenizer(folder: Path) -> bool:
    return any((folder / name).exists() for name in TOKENIZER_FILES)


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object. Raises UserError where the file is missing or holds anything else."""
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{file} is missing") from error
    except (ValueError, OSError) as error:
        raise UserError(f"{file} cannot be read: {first_line(error)}") from error
    if not isinstance(values, dict):
        raise UserError(f"{file} is not a JSON object")
    return values


def _why_no_model(folder: Path) -> str:
    """Of a folder without a config.json, by what is in it instead."""
    missing = f"{folder} is not a model: its config.json is missing"
    if (folder / "adapter_config.json").exists():
        return f"{missing}, and adapter_config.json shows that it is an adapter of one"
    ggufs = sorted(folder.glob("*.gguf"))
    if ggufs:
        return f"{missing}; it holds GGUF files, which are named one by one, such as {ggufs[0]}"
    return missing


def first_line(error: Exception) -> str:
    """The start of an error's message, which in libraries may run over a screen."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
