"""Text that comes in pieces is the text of the whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from checkpoints import byte_tokenizer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from esurge_cli.text.detokenizer import Detokenizer, TokenTexts

WORDS = ["▁", "▁the", "▁a", "a", "b", "s", "é", "▁▁", "😀", "."]


def sentencepiece_tokenizer(strips: bool) -> PreTrainedTokenizerFast:
    """As Llama 2's (which drops the space that begins a text) or Gemma's: words with ▁, and byte tokens."""
    tokens = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)], *WORDS]
    backend = Tokenizer(
        models.BPE({token: i for i, token in enumerate(tokens)}, [], unk_token="<unk>", byte_fallback=True)
    )
    backend.normalizer = normalizers.Replace(" ", "▁")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strips else steps)
    backend.add_special_tokens([AddedToken(token, special=True) for token in ("<unk>", "<s>", "</s>")])
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, and an added token that is a word."""
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<think>"])
    return tokenizer


def metaspace_tokenizer() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(["<unk>", *WORDS])}, [], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")


TOKENIZERS = {
    "bytes": byte_level_tokenizer(),
    "llama": sentencepiece_tokenizer(strips=True),
    "gemma": sentencepiece_tokenizer(strips=False),
    "metaspace": metaspace_tokenizer(),
}


def whole(tokenizer: Any, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def check_pieces(tokenizer: Any, texts: TokenTexts, pieces: list[list[int]]) -> None:
    """What is settled never changes, and at the end it is the whole."""
    ids = [token_id for piece in pieces for token_id in piece]
    expected = whole(tokenizer, ids)
    detokenizer, settled = Detokenizer(texts), ""
    for piece in pieces:
        detokenizer.append(piece)
        text = detokenizer.settle()
        assert text.startswith(settled)
        assert expected.startswith(text)
        settled = text
    assert detokenizer.finish() == expected


@pytest.mark.parametrize("name", TOKENIZERS)
def test_any_tokens_in_any_pieces(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    texts = TokenTexts(tokenizer)
    pieces = st.lists(st.lists(st.integers(0, len(tokenizer) - 1), max_size=3), max_size=24)

    @settings(max_examples=300, deadline=None)
    @given(pieces)
    def check(pieces: list[list[int]]) -> None:
        check_pieces(tokenizer, texts, pieces)

    check()


@pytest.mark.parametrize("name", ["bytes", "llama", "gemma"])
def test_text_token_by_token(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    texts = TokenTexts(tokenizer)

    @settings(max_examples=200, deadline=None)
    @given(st.text(alphabet=st.sampled_from("ab é😀👩‍👩‍👧\n̈漢"), max_size=12))
    def check(text: str) -> None:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        check_pieces(tokenizer, texts, [[token_id] for token_id in ids])

    check()


def test_an_emoji_cut_over_tokens_is_held_back_until_it_is_whole() -> None:
    tokenizer = TOKENIZERS["bytes"]
    detokenizer = Detokenizer(TokenTexts(tokenizer))
    seen = []
    for token_id in tokenizer("a😀b")["input_ids"]:
        detokenizer.append([token_id])
        seen.append(detokenizer.settle())
    assert seen == ["a", "a", "a", "a", "a😀", "a😀b"]


def test_a_run_of_byte_tokens_is_held_back_until_it_ends() -> None:
    """A run that turns out not to be UTF-8 loses all its characters."""
    tokenizer = TOKENIZERS["gemma"]
    smile = tokenizer.convert_tokens_to_ids([f"<0x{byte:02X}>" for byte in "😀".encode()])
    (stray, letter) = tokenizer.convert_tokens_to_ids(["<0xFF>", "a"])
    detokenizer = Detokenizer(TokenTexts(tokenizer))
    detokenizer.append(smile)
    assert detokenizer.settle() == ""
    detokenizer.append([stray])
    assert detokenizer.settle() == ""
    detokenizer.append([letter])
    assert detokenizer.settle() == "\ufffd" * 5 + "a"


def test_the_first_space_of_a_text_is_the_tokenizers_to_drop() -> None:
    for name, expected in (("llama", "the the"), ("gemma", " the the")):
        tokenizer = TOKENIZERS[name]
        detokenizer = Detokenizer(TokenTexts(tokenizer))
        for token_id in tokenizer.convert_tokens_to_ids(["▁the", "▁the"]):
            detokenizer.append([token_id])
            detokenizer.settle()
        assert detokenizer.finish() == expected


def test_a_token_alone_keeps_its_space_and_special_ones_their_names() -> None:
    tokenizer = TOKENIZERS["llama"]
    texts = TokenTexts(tokenizer)
    assert [texts.alone(tokenizer.convert_tokens_to_ids(token)) for token in ("▁the", "s", "</s>")] == [
        " the",
        "s",
        "</s>",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["smollm2_folder", "gemma3_folder"])
def test_real_tokenizers(model: str, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(model)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = TokenTexts(tokenizer)
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    bytes_ = [id_ for token, id_ in vocabulary.items() if token.startswith("<0x") or len(token) == 1]
    ids = st.integers(0, len(tokenizer) - 1) | st.sampled_from(bytes_)

    @settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(st.lists(ids, max_size=3), max_size=24))
    def check(pieces: list[list[int]]) -> None:
        check_pieces(tokenizer, texts, pieces)

    check()
