"""A tokenizer from a GGUF file's metadata, which has the vocabulary and its merges, but only the name of the rest."""

from __future__ import annotations

from typing import Any

from gguf import TokenType
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from runner.errors import UserError
from runner.weights.gguf_file import GGUFFile

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""What SentencePiece writes for a space."""

# How each family's tokenizer.json cuts text before the merges.
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN_SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_GPT2, _DIGITS, _LLAMA3, _QWEN2, _TEKKEN = "gpt-2", "digits", "llama-3", "qwen2", "tekken"
_PRE_TOKENIZERS = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "command-r": _DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "smaug-bpe": _LLAMA3,
    "dbrx": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": _TEKKEN,
}
"""`tokenizer.ggml.pre`, llama.cpp's name → the family."""

_NEEDED = {"gpt2": "merges", "llama": "scores"}
"""`tokenizer.ggml.model` → what it is built of, beside the tokens."""

_WHOLE_WORDS = ("llama-bpe", "llama3", "llama-v3", "tekken")
"""Those that take a word that is a token as it is, whatever the merges would make of it."""


def load_tokenizer(file: GGUFFile) -> PreTrainedTokenizerFast:
    """Raises UserError for a kind of tokenizer that is not known here."""
    metadata = {
        key.removeprefix("tokenizer.ggml."): value
        for key, value in file.metadata.items()
        if key.startswith("tokenizer.ggml.")
    }
    kind = metadata.get("model")
    if kind is None or "tokens" not in metadata:
        raise UserError(f"{file.path} has no tokenizer")
    if kind not in _NEEDED:
        raise UserError(f"{file.path} has a tokenizer of the kind {kind!r}; gpt2 and llama can be read")
    if _NEEDED[kind] not in metadata:
        raise UserError(f"{file.path} has a tokenizer without tokenizer.ggml.{_NEEDED[kind]}")
    if kind == "gpt2":
        backend = _byte_level(file, metadata)
    elif file.metadata["general.architecture"].startswith("gemma"):
        backend = _gemma(metadata)
    else:
        backend = _sentencepiece(metadata)
    _add_tokens(backend, metadata)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        clean_up_tokenization_spaces=False,
        add_bos_token=metadata.get("add_bos_token", kind == "llama" or metadata.get("pre") in _WHOLE_WORDS),
        add_eos_token=metadata.get("add_eos_token", False),
        chat_template=file.metadata.get("tokenizer.chat_template"),
        **_special_tokens(metadata),
    )


def _byte_level(file: GGUFFile, metadata: dict[str, Any]) -> Tokenizer:
    """GPT-2's byte-level BPE (github.com/openai/gpt-2), which differs by model in how it cuts text into words."""
    name = metadata.get("pre", "default")
    if name not in _PRE_TOKENIZERS:
        raise UserError(f"{file.path} cuts text as {name!r}; known are: {', '.join(_PRE_TOKENIZERS)}")
    family = _PRE_TOKENIZERS[name]
    vocab = {token: i for i, token in enumerate(metadata["tokens"])}
    merges = [(left, right) for left, right in (merge.split(" ", 1) for merge in metadata["merges"])]
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=name in _WHOLE_WORDS))
    if family == _QWEN2:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _pre_tokenizer(family)
    backend.decoder = decoders.ByteLevel()
    return backend


def _pre_tokenizer(family: str) -> pre_tokenizers.PreTokenizer:
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if family == _GPT2:
        return gpt2
    if family == _DIGITS:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])
    split = {_LLAMA3: _LLAMA3_SPLIT, _QWEN2: _QWEN2_SPLIT, _TEKKEN: _TEKKEN_SPLIT}[family]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(split), behavior="isolated"), to_bytes])


def _sentencepiece(metadata: dict[str, Any]) -> Tokenizer:
    """SentencePiece as of Llama 2: spaces become "▁", unknown characters bytes, and a space goes before the text.

    As in transformers, a text that starts with a space gets no second one.
    """
    tokens = metadata["tokens"]
    backend = _byte_fallback_bpe(metadata, tokens, dict(zip(tokens, metadata["scores"].tolist(), strict=True)))
    prefix = metadata.get("add_space_prefix", True)
    backend.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement=_SPACE, prepend_scheme="first" if prefix else "never", split=False
    )
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return backend


def _gemma(metadata: dict[str, Any]) -> Tokenizer:
    """Gemma's SentencePiece puts no space before the text, and has tokens for runs of spaces.

    The file spells those with real spaces. Its scores are no guide to the order of merges; the order of tokens is.
    """
    tokens = [_SPACE * len(token) if token and not token.strip(" ") else token for token in metadata["tokens"]]
    backend = _byte_fallback_bpe(metadata, tokens, {token: -i for i, token in enumerate(tokens)})
    backend.normalizer = normalizers.Replace(" ", _SPACE)
    backend.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    backend.decoder = decoders.Sequence([decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    return backend


def _byte_fallback_bpe(metadata: dict[str, Any], tokens: list[str], scores: dict[str, float]) -> Tokenizer:
    return Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=_derived_merges(scores),
            fuse_unk=True,
            byte_fallback=True,
            unk_token=tokens[metadata.get("unknown_token_id", 0)],
        )
    )


def _derived_merges(scores: dict[str, float]) -> list[tuple[str, str]]:
    """Every way to make a token of two others: those of the best-scored token first, each with the longest left part.

    SentencePiece itself keeps no merges; it joins the neighbours that make the best-scored token.
    """
    merges = []
    for token in sorted(scores, key=scores.__getitem__, reverse=True):
        for at in range(len(token) - 1, 0, -1):
            left, right = token[:at], token[at:]
            if left in scores and right in scores:
                merges.append((left, right))
    return merges


def _add_tokens(backend: Tokenizer, metadata: dict[str, Any]) -> None:
    """Control tokens, and those the model's makers added, are found in a text whole, before anything else."""
    kinds = metadata.get("token_type")
    if kinds is None:
        return
    for kind, special in ((TokenType.CONTROL, True), (TokenType.USER_DEFINED, False)):
        # Gemma's runs of spaces are spelled otherwise in the vocabulary, and left to the merges.
        found = [
            AddedToken(token, normalized=False, special=special)
            for token in (metadata["tokens"][i] for i in (kinds == kind).nonzero()[0])
            if backend.token_to_id(token) is not None
        ]
        backend.add_special_tokens(found) if special else backend.add_tokens(found)


def _special_tokens(metadata: dict[str, Any]) -> dict[str, str | None]:
    """The tokens that have a role, by their names in transformers; for llama.cpp, a Llama's need no saying."""
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    implied = {"bos_token": 1, "eos_token": 2, "unk_token": 0} if metadata["model"] == "llama" else {}
    tokens = metadata["tokens"]
    ids = {role: metadata.get(f"{name}_token_id", implied.get(role)) for role, name in names.items()}
    return {role: None if token_id is None else tokens[token_id] for role, token_id in ids.items()}
