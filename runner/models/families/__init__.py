"""From a Hugging Face config to a DecoderConfig: one short file a family, which states what differs.

To add a family, write a function that returns `decoder_fields(config)` with its differences and list it in FAMILIES.
"""

from __future__ import annotations

from collections.abc import Callable

from transformers import PretrainedConfig

from runner.errors import UserError
from runner.models.config import DecoderConfig
from runner.models.families import gemma, llama, qwen

FAMILIES: dict[str, Callable[[PretrainedConfig], DecoderConfig]] = {
    "llama": llama.llama,
    "mistral": llama.mistral,
    "qwen2": qwen.qwen2,
    "qwen3": qwen.qwen3,
    "gemma2": gemma.gemma2,
    "gemma3_text": gemma.gemma3_text,
}


def decoder_config(config: PretrainedConfig) -> DecoderConfig:
    """The decoder that a checkpoint's config describes. Raises UserError for an architecture not known here."""
    family = FAMILIES.get(config.model_type)
    if family is None:
        raise UserError(
            f"the architecture {config.model_type!r} is not supported; supported are: {', '.join(sorted(FAMILIES))}"
        )
    return family(config)
