"""Checkpoints for the tests, made on the spot: tiny ones with random weights for every family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedTokenizerFast

_TINY: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

_DIFFERENCES: dict[str, dict[str, Any]] = {
    # Two whole periods would need twelve layers, so the pattern is spelled out.
    "gemma3_text": {
        "num_hidden_layers": 4,
        "sliding_window": 32,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "query_pre_attn_scalar": 16,
    },
}

SPECIAL_TOKENS = ["<pad>", "<bos>", "<eos>", "<unk>"]

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def tiny_config(model_type: str, **overrides: Any) -> PretrainedConfig:
    """A config of a few layers; `overrides` are fields of the config class."""
    return AutoConfig.for_model(model_type, **(_TINY | _DIFFERENCES.get(model_type, {}) | overrides))


def tiny_checkpoint(
    folder: Path,
    model_type: str = "llama",
    *,
    seed: int = 0,
    tokenizer: bool = False,
    dtype: torch.dtype = torch.float32,
    max_shard_size: str = "1GB",
    **overrides: Any,
) -> Path:
    """Write a model of random weights into `folder`, as transformers saves it, and return `folder`.

    The weights are spread widely enough for tokens to differ, and norms and biases, which transformers would make
    plain ones and zeros, are random as well. With a `tokenizer`, each byte is a token (see `byte_tokenizer`).
    """
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(tiny_config(model_type, **overrides), dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
            elif "embed_tokens" in name:
                parameter.copy_(torch.randn_like(parameter))
            else:
                parameter.copy_(torch.randn_like(parameter) * parameter.shape[1] ** -0.5)
    model.to(dtype).save_pretrained(folder, max_shard_size=max_shard_size)
    if tokenizer:
        byte_tokenizer().save_pretrained(folder)
    return folder


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer without merges: 4 special tokens, then 256 bytes. It has a chat template and adds no BOS."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*SPECIAL_TOKENS, *alphabet])}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    pad, bos, eos, unk = SPECIAL_TOKENS
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=pad,
        bos_token=bos,
        eos_token=eos,
        unk_token=unk,
        chat_template=CHAT_TEMPLATE,
    )
