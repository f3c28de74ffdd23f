"""From prompts to tokens within the context."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checkpoints import byte_tokenizer
from fake_engine import BOS, VOCABULARY, ids_of
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from esurge_cli.prepare import PreparedRow, Preparer, SkippedRow, TooLong
from esurge_cli.rows.row import Chat, ErrorType, Row, RowError, RowFault
from esurge_cli.sampling import SamplingDefaults
from esurge_cli.text.chats import ChatOptions
from esurge_cli.text.prompts import PromptEncoder

PLAIN_TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"


def bos_tokenizer() -> PreTrainedTokenizerFast:
    """One that adds BOS by itself, as Llama's and Gemma's do."""
    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS)])
    return tokenizer


def encode(tokenizer: Any, *prompts: Any, **chat: Any) -> list[Any]:
    encoder = PromptEncoder(tokenizer, VOCABULARY, ChatOptions(**chat))
    return encoder.encode([Row(i, i + 1, None, prompt) for i, prompt in enumerate(prompts)])


def chat(*contents: str, system: str | None = None) -> Chat:
    first = [{"role": "system", "content": system}] if system else []
    return Chat([*first, *({"role": "user", "content": content} for content in contents)])


def test_plain_prompts_get_what_the_tokenizer_adds() -> None:
    assert encode(byte_tokenizer(), "Hi") == [ids_of("Hi")]
    assert encode(bos_tokenizer(), "Hi") == [[BOS, *ids_of("Hi")]]


def test_bos_is_never_doubled_nor_lost() -> None:
    hello = ids_of("user: Hi\nassistant:")
    for tokenizer in (byte_tokenizer(), bos_tokenizer()):
        assert encode(tokenizer, chat("Hi")) == [[BOS, *hello]]  # the template has it
    tokenizer = bos_tokenizer()
    assert encode(tokenizer, "<bos>Hi") == [[BOS, *ids_of("Hi")]]  # the user wrote it
    tokenizer.chat_template = PLAIN_TEMPLATE
    assert encode(tokenizer, chat("Hi")) == [[BOS, *ids_of("user: Hi\n")]]  # the template lacks it


def test_an_empty_prompt_is_bos_alone_or_a_fault() -> None:
    assert encode(bos_tokenizer(), "") == [[BOS]]
    for prompt in ("", []):
        (fault,) = encode(byte_tokenizer(), prompt)
        assert str(fault) == "the prompt has no tokens"


def test_token_ids_are_taken_as_they_are() -> None:
    assert encode(bos_tokenizer(), [5, 6, 7]) == [[5, 6, 7]]


def test_rows_of_all_kinds_stay_in_order() -> None:
    expected = [ids_of("a"), [9], [BOS, *ids_of("user: b\nassistant:")], ids_of("c")]
    assert encode(byte_tokenizer(), "a", [9], chat("b"), "c") == expected


def test_a_plain_prompt_may_be_wrapped_as_a_chat() -> None:
    assert encode(byte_tokenizer(), "Hi", wrap=True) == encode(byte_tokenizer(), chat("Hi"))


def test_a_system_prompt_is_put_before_chats_that_have_none() -> None:
    with_system = encode(byte_tokenizer(), chat("Hi", system="Be brief"))
    assert encode(byte_tokenizer(), chat("Hi"), system="Be brief") == with_system
    own = encode(byte_tokenizer(), chat("Hi", system="Own"))
    assert encode(byte_tokenizer(), chat("Hi", system="Own"), system="Be brief") == own


def test_what_cannot_be_encoded_is_a_fault_of_its_row_alone() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    empty, too_high, negative, refused, good = encode(tokenizer, "", [VOCABULARY], [-1], chat("Hi"), "Hi")
    assert [str(fault) for fault in (empty, too_high, negative)] == [
        "the prompt has no tokens",
        f"the token id {VOCABULARY} is not one of the model's {VOCABULARY}",
        f"the token id -1 is not one of the model's {VOCABULARY}",
    ]
    assert isinstance(refused, RowFault)
    assert "roles must alternate" in str(refused)
    assert good == ids_of("Hi")


def test_a_model_without_a_template_says_so() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = None
    (fault,) = encode(tokenizer, chat("Hi"))
    assert "no chat template" in str(fault)


def prepare(prompt: Any, sampling: dict[str, Any], on_too_long: str = "error", tokenizer: Any = None) -> Any:
    encoder = PromptEncoder(tokenizer or byte_tokenizer(), VOCABULARY, ChatOptions())
    preparer = Preparer(encoder, SamplingDefaults.of({}, {}), 10, TooLong(on_too_long))
    (outcome,) = preparer([Row(3, 4, "x", prompt, sampling)])
    return outcome


@pytest.mark.parametrize(("length", "asked", "got"), [(5, 512, 5), (5, 3, 3), (9, 512, 1), (9, 0, 0)])
def test_max_tokens_is_clamped_to_the_context_left(length: int, asked: int, got: int) -> None:
    outcome = prepare("x" * length, {"max_tokens": asked})
    assert isinstance(outcome, PreparedRow)
    assert outcome.params.max_tokens == got


def test_min_tokens_is_clamped_with_it() -> None:
    assert prepare("x" * 8, {"max_tokens": 6, "min_tokens": 4}).params.min_tokens == 2


def test_a_prompt_that_is_too_long_is_an_error() -> None:
    outcome = prepare("0123456789", {"max_tokens": 3})
    assert isinstance(outcome, RowError)
    assert (outcome.index, outcome.line, outcome.id, outcome.type) == (3, 4, "x", ErrorType.PROMPT_TOO_LONG)
    assert outcome.message == "the prompt of 10 tokens leaves no room to generate in a context of 10"


def test_it_may_be_skipped() -> None:
    assert prepare("0123456789", {}, "skip") == SkippedRow(3)


@pytest.mark.parametrize(
    ("max_tokens", "left", "right"),
    [(3, "3456789", "0123456"), (1, "123456789", "012345678"), (512, "56789", "01234"), (0, "123456789", "012345678")],
)
def test_it_may_be_cut_and_leaves_room_for_max_tokens_and_keeps_half_the_context(
    max_tokens: int, left: str, right: str
) -> None:
    for how, expected in (("truncate-left", left), ("truncate-right", right)):
        outcome = prepare("0123456789", {"max_tokens": max_tokens}, how)
        assert outcome.prompt_token_ids == ids_of(expected)
        assert outcome.params.max_tokens == min(max_tokens, 10 - len(expected))


def test_bos_stays_when_the_beginning_is_cut() -> None:
    outcome = prepare("0123456789", {"max_tokens": 4}, "truncate-left", bos_tokenizer())
    assert outcome.prompt_token_ids == [BOS, *ids_of("56789")]


def test_a_bad_parameter_is_an_error_of_its_row() -> None:
    outcome = prepare("Hi", {"temperature": -1})
    assert isinstance(outcome, RowError)
    assert outcome.type is ErrorType.INVALID_PARAMETER


@pytest.mark.slow
@pytest.mark.parametrize("model", ["smollm2_folder", "gemma3_folder"])
def test_real_tokenizers_encode_as_transformers_does(model: str, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(model)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = ["The capital of France is", " 漢字 😀\n\n  x", "naïve café"]
    encoder = PromptEncoder(tokenizer, len(tokenizer), ChatOptions())
    rows = [Row(i, i, None, text) for i, text in enumerate(texts)]
    assert encoder.encode(rows) == [tokenizer(text)["input_ids"] for text in texts]
    if tokenizer.chat_template:
        messages = [{"role": "user", "content": texts[1]}]
        expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
        assert encoder.encode([Row(0, 0, None, Chat(messages))]) == [expected]
