"""Tokenizers built of GGUF metadata, against transformers' own and SentencePiece, on a page of hard text."""

from __future__ import annotations

import json
import unicodedata
from io import BytesIO
from pathlib import Path

import gguf
import pytest
import sentencepiece
from gguf import TokenType
from gguf_files import write_all
from hard_text import HARD_TEXT
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Qwen2Tokenizer

from runner.errors import UserError
from runner.weights.gguf_file import read_gguf
from runner.weights.gguf_tokenizer import load_tokenizer

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def assert_same(ours: PreTrainedTokenizerBase, theirs: PreTrainedTokenizerBase, text: str) -> None:
    for special in (True, False):
        ids = ours(text, add_special_tokens=special).input_ids
        assert ids == theirs(text, add_special_tokens=special).input_ids, text
    for skip in (True, False):
        assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip), text


@pytest.fixture(scope="module")
def byte_level() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """A vocabulary and merges, learned of the hard text itself, cut at spaces only: it has tokens across any border."""
    tokenizer = Tokenizer(models.BPE())
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(" ", "merged_with_next"), to_bytes])
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(HARD_TEXT * 2, trainer)
    return tokenizer.get_vocab(), [tuple(merge) for merge in json.loads(tokenizer.to_str())["model"]["merges"]]


def write_byte_level(folder: Path, byte_level: tuple, pre: str | None, **metadata: object) -> Path:
    vocab, merges = byte_level
    tokens = sorted(vocab, key=vocab.__getitem__)
    writer = gguf.GGUFWriter(folder / "tokenizer.gguf", "llama")
    writer.add_name("tokenizer")
    writer.add_tokenizer_model("gpt2")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if token in SPECIAL else TokenType.NORMAL for token in tokens])
    writer.add_token_merges([f"{left} {right}" for left, right in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for key, value in metadata.items():
        getattr(writer, key)(value)
    write_all(writer)
    return folder / "tokenizer.gguf"


@pytest.mark.parametrize("pre", ["gpt-2", "default", None, "llama-bpe", "smaug-bpe", "tekken"])
def test_byte_level_kinds_as_transformers_converts_them(tmp_path, byte_level, pre):
    file = write_byte_level(tmp_path, byte_level, pre, add_add_bos_token=False)
    ours, theirs = load_tokenizer(read_gguf(file)), AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name)
    for text in HARD_TEXT:
        assert_same(ours, theirs, text)


def test_qwen2_as_its_own_tokenizer(tmp_path, byte_level):
    vocab, merges = byte_level
    theirs = Qwen2Tokenizer(vocab=vocab, merges=merges)
    theirs.add_special_tokens({"additional_special_tokens": SPECIAL})
    ours = load_tokenizer(read_gguf(write_byte_level(tmp_path, byte_level, "qwen2")))
    for text in HARD_TEXT:
        assert_same(ours, theirs, text)


def test_smollm_cuts_at_every_digit(tmp_path, byte_level):
    """The published tokenizer.json splits digits off first, and the rest as GPT-2 does."""
    tokenizer = load_tokenizer(read_gguf(write_byte_level(tmp_path, byte_level, "smollm")))
    backend = tokenizer.backend_tokenizer.pre_tokenizer
    words = [word for word, _ in backend.pre_tokenize_str("a 12½ b")]
    assert words == ["a", "Ġ", "1", "2", "Â½", "Ġb"]


def test_llama3_takes_a_word_that_is_a_token_as_it_is(tmp_path):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*SPECIAL, *alphabet, "hello", "xy"])}
    for pre, count in (("llama-bpe", 1), ("tekken", 1), ("gpt-2", 5), ("qwen2", 5)):
        tokenizer = load_tokenizer(read_gguf(write_byte_level(tmp_path, (vocab, [("x", "y")]), pre)))
        assert len(tokenizer("hello", add_special_tokens=False).input_ids) == count, pre


def test_bos_is_added_once_where_the_file_or_its_kind_says_so(tmp_path, byte_level):
    def ids(pre: str, **metadata: object) -> list[int]:
        return load_tokenizer(read_gguf(write_byte_level(tmp_path, byte_level, pre, **metadata)))("A").input_ids

    letter = ids("gpt-2")
    assert len(letter) == 1
    assert ids("gpt-2", add_add_bos_token=True) == [1, *letter]
    assert ids("llama-bpe") == [1, *letter]
    assert ids("llama-bpe", add_add_bos_token=False) == letter
    assert ids("gpt-2", add_add_eos_token=True) == [*letter, 2]


def test_special_tokens_in_text_and_chat_template(tmp_path, byte_level):
    template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    tokenizer = load_tokenizer(read_gguf(write_byte_level(tmp_path, byte_level, "gpt-2", add_chat_template=template)))
    assert tokenizer("<|im_start|>x<|im_end|>").input_ids[::2] == [1, 2]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (1, 2, None)
    assert tokenizer.decode([1, 2], skip_special_tokens=True) == ""
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    assert chat == "<|im_start|>user\nHi<|im_end|>\n"


def test_added_tokens_keep_their_own_spelling(tmp_path, byte_level):
    """DeepSeek's control tokens have characters that no byte-level token has."""
    vocab, merges = byte_level
    added = "<\uff5cbegin\u2581of\u2581sentence\uff5c>"
    file = tmp_path / "tokenizer.gguf"
    tokens = [*sorted(vocab, key=vocab.__getitem__), added, "<think>"]
    writer = gguf.GGUFWriter(file, "qwen2")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("deepseek-r1-qwen")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.NORMAL] * len(vocab) + [TokenType.CONTROL, TokenType.USER_DEFINED])
    writer.add_token_merges([f"{left} {right}" for left, right in merges])
    write_all(writer)
    tokenizer = load_tokenizer(read_gguf(file))
    ids = tokenizer(f"{added}<think>").input_ids
    assert ids == [len(vocab), len(vocab) + 1] and len(tokenizer) == len(tokens)
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<think>"


@pytest.fixture(scope="module")
def sentencepiece_model() -> sentencepiece.SentencePieceProcessor:
    """BPE as Llama 2 was trained: bytes for what is unknown, no normalization, a space before the text."""
    model = BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for text in HARD_TEXT for line in text.splitlines() if "\x00" not in line] * 3),
        model_writer=model,
        model_type="bpe",
        vocab_size=900,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        split_digits=True,
        user_defined_symbols=["<tool>"],
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def write_sentencepiece(folder: Path, model: sentencepiece.SentencePieceProcessor, *, roles: bool = True) -> Path:
    ids = range(model.vocab_size())
    kinds = [
        TokenType.UNKNOWN
        if model.is_unknown(i)
        else TokenType.CONTROL
        if model.is_control(i)
        else TokenType.BYTE
        if model.is_byte(i)
        else TokenType.USER_DEFINED
        if model.id_to_piece(i) == "<tool>"
        else TokenType.NORMAL
        for i in ids
    ]
    writer = gguf.GGUFWriter(folder / "tokenizer.gguf", "llama")
    writer.add_name("tokenizer")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([model.id_to_piece(i) for i in ids])
    writer.add_token_scores([model.get_score(i) for i in ids])
    writer.add_token_types(kinds)
    if roles:
        writer.add_bos_token_id(model.bos_id())
        writer.add_eos_token_id(model.eos_id())
        writer.add_unk_token_id(model.unk_id())
    write_all(writer)
    return folder / "tokenizer.gguf"


def test_sentencepiece_as_transformers_converts_it(tmp_path, sentencepiece_model):
    file = write_sentencepiece(tmp_path, sentencepiece_model)
    ours, theirs = load_tokenizer(read_gguf(file)), AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name)
    for text in [*HARD_TEXT, "call <tool> now", "<tool>"]:
        assert_same(ours, theirs, text)


def test_sentencepiece_as_sentencepiece_does_it(tmp_path, sentencepiece_model):
    """But for text that starts with a space or an added token, where transformers puts no other, and control tokens."""
    tokenizer = load_tokenizer(read_gguf(write_sentencepiece(tmp_path, sentencepiece_model)))
    texts = [text for text in HARD_TEXT if not text.startswith((" ", "\u2581")) and "</s>" not in text]
    for text in [*texts, "call <tool> now"]:
        ids = tokenizer(text).input_ids
        assert ids == [1, *sentencepiece_model.encode(text)], text
        assert tokenizer.decode(ids, skip_special_tokens=True) == sentencepiece_model.decode(ids[1:]), text


def test_a_llama_without_roles_has_the_usual_ones(tmp_path, sentencepiece_model):
    tokenizer = load_tokenizer(read_gguf(write_sentencepiece(tmp_path, sentencepiece_model, roles=False)))
    assert (tokenizer.unk_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    assert tokenizer("a").input_ids[0] == 1


def test_other_kinds_are_refused_by_name(tmp_path, byte_level):
    with pytest.raises(UserError, match=r"'falcon'; known are: default, gpt-2"):
        load_tokenizer(read_gguf(write_byte_level(tmp_path, byte_level, "falcon")))
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "llama")
    writer.add_tokenizer_model("bert")
    writer.add_token_list(["a"])
    write_all(writer)
    with pytest.raises(UserError, match=r"'bert'; gpt2 and llama"):
        load_tokenizer(read_gguf(tmp_path / "other.gguf"))
    writer = gguf.GGUFWriter(tmp_path / "bare.gguf", "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["a"])
    write_all(writer)
    with pytest.raises(UserError, match=r"without tokenizer.ggml.scores"):
        load_tokenizer(read_gguf(tmp_path / "bare.gguf"))
    write_all(gguf.GGUFWriter(tmp_path / "none.gguf", "llama"))
    with pytest.raises(UserError, match=r"none.gguf has no tokenizer"):
        load_tokenizer(read_gguf(tmp_path / "none.gguf"))


def pair(file: Path) -> tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]:
    ours = load_tokenizer(read_gguf(file))
    theirs = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    for name in ("bos_token_id", "eos_token_id", "unk_token_id", "pad_token_id", "chat_template"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert len(ours) == len(theirs)
    return ours, theirs


@pytest.mark.slow
def test_smollm2_as_transformers_converts_it(smollm2_gguf):
    """Transformers leaves out that digits are split off, which shows at those that are not ASCII alone."""
    ours, theirs = pair(smollm2_gguf)

    def has_other_digits(text: str) -> bool:
        return any(unicodedata.category(character).startswith("N") and not character.isascii() for character in text)

    for text in HARD_TEXT:
        assert_same(ours, theirs, text)

    @settings(max_examples=300, deadline=None)
    @given(st.text().filter(lambda text: not has_other_digits(text)))
    def check(text: str) -> None:
        assert_same(ours, theirs, text)

    check()
    chat = [{"role": "user", "content": "Hi"}]
    assert ours.apply_chat_template(chat, tokenize=False) == theirs.apply_chat_template(chat, tokenize=False)


@pytest.mark.slow
def test_gemma3_as_transformers_converts_it(gemma3_gguf):
    ours, theirs = pair(gemma3_gguf)
    for text in HARD_TEXT:
        assert_same(ours, theirs, text)

    @settings(max_examples=300, deadline=None)
    @given(st.text())
    def check(text: str) -> None:
        assert_same(ours, theirs, text)

    check()
