"""Messages through chat templates of every kind; what transformers makes of them is right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from checkpoints import CHAT_TEMPLATE, byte_tokenizer
from fake_engine import VOCABULARY, ids_of
from transformers import AutoTokenizer

from esurge_cli.rows.fields import FieldNames, read_rows
from esurge_cli.rows.row import ErrorType, Record, Row, RowError, RowFault
from esurge_cli.text.chats import ChatOptions, read_chat_template
from esurge_cli.text.prompts import PromptEncoder
from runner.errors import UserError

# A turn ends with ⏎, so that it shows where a continued one stops.
TURNS = "{% for message in messages %}<{{ message.role }}>{{ message.content }}⏎{% endfor %}"
STRINGS = TURNS + "{% if add_generation_prompt %}<assistant>{% endif %}"
CONCATENATED = STRINGS.replace("{{ message.content }}", "{{ '' + message['content'] }}")
PARTS = STRINGS.replace("{{ message.content }}", "{% for part in message.content %}{{ part.text }}{% endfor %}")
BOTH = STRINGS.replace(
    "{{ message.content }}",
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{{ part.text }}{% endfor %}{% endif %}",
)
TRIMMED = STRINGS.replace("message.content", "message.content | trim")
WITH_TOOLS = (
    "{% if tools %}{% for tool in tools %}[{{ tool.function.name }}]{% endfor %}{% endif %}"
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}"
    "{% for call in message.tool_calls or [] %}{{ call.function.name }}({{ call.function.arguments.city }})"
    "{% endfor %}⏎{% endfor %}"
)
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]


def text_of(template: str | dict[str, str] | None, fields: dict[str, Any], /, **chat: Any) -> str:
    """What the model gets; a fault is raised."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template  # type: ignore[assignment]
    (row,) = read_rows([Record(1, fields)], FieldNames())
    if isinstance(row, RowError):
        raise RowFault(row.type, row.message)
    (ids,) = PromptEncoder(tokenizer, VOCABULARY, ChatOptions(**chat)).encode([row])
    if isinstance(ids, RowFault):
        raise ids
    text = tokenizer.decode(ids)
    assert isinstance(text, str)
    return text


def fault_of(template: str | None, fields: dict[str, Any], /, **chat: Any) -> RowFault:
    with pytest.raises(RowFault) as caught:
        text_of(template, fields, **chat)
    return caught.value


def said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content} | more


def chat(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"messages": list(messages)} | fields


def part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


@pytest.mark.parametrize("template", [STRINGS, CONCATENATED, PARTS, BOTH])
def test_a_string_comes_through_every_kind_of_template(template: str) -> None:
    assert text_of(template, chat(said("user", "Hi"))) == "<user>Hi⏎<assistant>"
    assert text_of(template, {"prompt": "Hi"}, wrap=True) == "<user>Hi⏎<assistant>"
    with_system = text_of(template, chat(said("user", "Hi")), system="S")
    assert with_system == "<system>S⏎<user>Hi⏎<assistant>"


@pytest.mark.parametrize(
    ("template", "text"),
    [(STRINGS, "a\nb"), (CONCATENATED, "a\nb"), (PARTS, "ab"), (BOTH, "ab")],
)
def test_parts_are_joined_for_templates_that_read_strings(template: str, text: str) -> None:
    assert text_of(template, chat(said("user", [part("a"), part("b")]))) == f"<user>{text}⏎<assistant>"


def test_a_part_of_another_type_is_named() -> None:
    fault = fault_of(STRINGS, chat(said("user", [part("a"), {"type": "image_url", "image_url": {"url": "x"}}])))
    assert fault.type is ErrorType.UNSUPPORTED_PARAMETER
    assert str(fault) == "a part of the type image_url; only text is supported"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([[said("user", "nested")]], "each of messages must be an object with a role"),
        ([{"role": 1, "content": "a"}], "each of messages must be an object with a role"),
        ([said("user", None)], "the content of each of messages must be a string or a list of text parts"),
        ([said("user", {"text": "a"})], "the content of each of messages must be a string"),
        ([said("user", [])], "the content of each of messages must be a string"),
        ([said("user", ["a"])], "each part of a content must be an object with a type"),
        ([said("user", [{"text": "a"}])], "each part of a content must be an object with a type"),
        ([said("user", [{"type": "text", "text": 1}])], "the text of a part must be a string"),
        ([said("assistant", None, tool_calls={})], "tool_calls must be a list"),
        ([said("assistant", None, tool_calls=[1])], "each of tool_calls must be an object with a function"),
        ([said("assistant", None, tool_calls=[{"function": {}}])], "a function that has a name"),
        ([said("assistant", "a", tool_calls=[{"function": {"name": "f", "arguments": 1}}])], "the arguments of a tool"),
        ("Hi", "messages must be a list of messages"),
    ],
)
def test_a_wrong_shape_is_a_fault(messages: Any, message: str) -> None:
    fault = fault_of(STRINGS, {"messages": messages})
    assert fault.type is ErrorType.INVALID_ROW
    assert message in str(fault)


@pytest.mark.parametrize("template", [STRINGS, CONCATENATED, PARTS, BOTH, TRIMMED])
def test_a_last_message_of_the_assistant_is_continued(template: str) -> None:
    assert text_of(template, chat(said("user", "Hi"), said("assistant", "Well"))) == "<user>Hi⏎<assistant>Well"


def test_white_space_at_its_end_stays_where_the_template_keeps_it() -> None:
    messages = chat(said("user", "Hi"), said("assistant", "Well, "))
    assert text_of(STRINGS, messages) == "<user>Hi⏎<assistant>Well, "
    assert text_of(TRIMMED, messages) == "<user>Hi⏎<assistant>Well,"


def test_an_empty_one_is_begun() -> None:
    messages = chat(said("user", "Hi"), said("assistant", ""))
    assert text_of(STRINGS, messages) == text_of(TRIMMED, messages) == "<user>Hi⏎<assistant>"


def test_a_row_may_say_otherwise() -> None:
    spoken = (said("user", "Hi"), said("assistant", "Well"))
    assert text_of(STRINGS, chat(*spoken, continue_final_message=False)) == "<user>Hi⏎<assistant>Well⏎<assistant>"
    assert text_of(STRINGS, chat(*spoken[:1], continue_final_message=True)) == "<user>Hi"
    assert text_of(STRINGS, chat(*spoken[:1], add_generation_prompt=False)) == "<user>Hi⏎"
    both = fault_of(STRINGS, chat(*spoken, continue_final_message=True, add_generation_prompt=True))
    assert str(both) == "continue_final_message and add_generation_prompt do not go together"
    assert "must be true or false" in str(fault_of(STRINGS, chat(*spoken, continue_final_message="yes")))


CALL = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}])
def test_calls_of_tools_need_no_content_and_their_arguments_are_read(content: dict[str, Any]) -> None:
    called = {"role": "assistant", "tool_calls": [CALL]} | content
    messages = chat(said("user", "Hi"), called, said("tool", "rain", tool_call_id="c"), tools=TOOLS)
    assert text_of(WITH_TOOLS, messages) == "[weather]<user>Hi⏎<assistant>weather(Oslo)⏎<tool>rain⏎"
    parsed = CALL | {"function": {"name": "weather", "arguments": {"city": "Oslo"}}}
    messages["messages"][1]["tool_calls"] = [parsed]
    assert text_of(WITH_TOOLS, messages) == "[weather]<user>Hi⏎<assistant>weather(Oslo)⏎<tool>rain⏎"


def test_null_content_is_empty_where_the_template_joins_strings() -> None:
    called = said("assistant", None, tool_calls=[CALL])
    assert text_of(CONCATENATED, chat(called, said("user", "?"))) == "<assistant>⏎<user>?⏎<assistant>"


def test_what_cannot_be_continued_or_read_is_a_fault() -> None:
    called = said("assistant", None, tool_calls=[CALL])
    assert "no text to continue" in str(fault_of(WITH_TOOLS, chat(said("user", "Hi"), called)))
    broken = said("assistant", "", tool_calls=[{"function": {"name": "f", "arguments": "{"}}])
    fault = fault_of(WITH_TOOLS, chat(broken, said("user", "Hi")))
    assert str(fault).startswith("the arguments of the tool call f are not JSON: ")


def test_tools_go_to_the_template() -> None:
    assert text_of(WITH_TOOLS, chat(said("user", "Hi"), tools=TOOLS)) == "[weather]<user>Hi⏎"
    assert text_of(WITH_TOOLS, {"prompt": "Hi", "tools": TOOLS}, wrap=True) == "[weather]<user>Hi⏎"
    for none in (None, []):
        assert text_of(STRINGS, chat(said("user", "Hi"), tools=none)) == "<user>Hi⏎<assistant>"


def test_a_model_may_have_a_template_for_tools() -> None:
    templates = {"default": STRINGS, "tool_use": WITH_TOOLS}
    assert text_of(templates, chat(said("user", "Hi"), tools=TOOLS)) == "[weather]<user>Hi⏎"
    assert text_of(templates, chat(said("user", "Hi"))) == "<user>Hi⏎<assistant>"


def test_tools_that_would_go_nowhere_are_faults() -> None:
    fault = fault_of(STRINGS, chat(said("user", "Hi"), tools=TOOLS))
    assert (fault.type, str(fault)) == (
        ErrorType.UNSUPPORTED_PARAMETER,
        "the model's chat template has no place for tools",
    )
    assert str(fault_of(STRINGS, {"prompt": "Hi", "tools": TOOLS})) == "tools needs messages (or --chat)"
    assert str(fault_of(WITH_TOOLS, chat(said("user", "Hi"), tools="x"))) == "tools must be a list of objects"


THINKING = STRINGS + "{% if not think | default(true) %}off{% endif %}"


def test_a_rows_template_arguments_win_over_the_flags() -> None:
    messages = chat(said("user", "Hi"))
    assert text_of(THINKING, messages) == "<user>Hi⏎<assistant>"
    assert text_of(THINKING, messages, template_kwargs={"think": False}) == "<user>Hi⏎<assistant>off"
    own = messages | {"chat_template_kwargs": {"think": True}}
    assert text_of(THINKING, own, template_kwargs={"think": False}) == "<user>Hi⏎<assistant>"


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [([1], "it must be an object"), ({"tokenize": True}, "tokenize cannot be set there")],
)
def test_what_is_no_template_argument_is_a_fault(kwargs: Any, message: str) -> None:
    fault = fault_of(STRINGS, chat(said("user", "Hi"), chat_template_kwargs=kwargs))
    assert (fault.type, str(fault)) == (ErrorType.INVALID_PARAMETER, f"chat_template_kwargs: {message}")


def test_another_template_may_be_used() -> None:
    assert text_of(None, chat(said("user", "Hi")), template=STRINGS) == "<user>Hi⏎<assistant>"
    assert text_of("no", chat(said("user", "Hi")), template=PARTS) == "<user>Hi⏎<assistant>"


def test_what_a_template_raises_is_the_rows_fault() -> None:
    fault = fault_of("{{ raise_exception('roles must alternate\\n' + 'x' * 900) }}", chat(said("user", "Hi")))
    assert str(fault) == "the chat template refuses the messages: roles must alternate"
    assert "'missing' is undefined" in str(fault_of("{{ missing.x }}", chat(said("user", "Hi"))))


def test_a_template_file_is_checked_at_once(tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text("{{ messages[0].content }}{% generation %}{% endgeneration %}")
    assert read_chat_template(str(file)) == file.read_text()
    file.write_text("{% for message in messages %}")
    with pytest.raises(UserError, match=r"chat\.jinja is not a Jinja template: .*endfor"):
        read_chat_template(str(file))
    with pytest.raises(UserError, match="nowhere cannot be read: No such file"):
        read_chat_template("nowhere")


def test_a_tokenizer_that_fails_on_one_row_fails_that_row_alone() -> None:
    """Half of a character cannot be handed to a tokenizer."""
    rows = [Row(i, i, None, text) for i, text in enumerate(["a", "\ud800", "b"])]
    first, fault, last = PromptEncoder(byte_tokenizer(), VOCABULARY, ChatOptions()).encode(rows)
    assert (first, last) == (ids_of("a"), ids_of("b"))
    assert isinstance(fault, RowFault)
    assert str(fault).startswith("the tokenizer refuses the prompt: ")


GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{% set first = messages[0].content + '\n\n' %}"
    "{% set messages = messages[1:] %}{% else %}{% set first = '' %}{% endif %}"
    "{% for message in messages %}{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "<start_of_turn>{{ 'model' if message.role == 'assistant' else message.role }}\n"
    "{{ first if loop.first else '' }}"
    "{% if message.content is string %}{{ message.content | trim }}{% else %}"
    "{% for part in message.content %}{{ part.text | trim }}{% endfor %}{% endif %}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
"""The kind of template that Gemma's chat models have."""

CHATS: list[list[dict[str, Any]]] = [
    [said("user", " 漢字 😀\n\n  x")],
    [said("system", "Be brief"), said("user", "Hi"), said("assistant", "Yes?"), said("user", "naïve café")],
    [said("user", "Write a poem"), said("assistant", "Roses are red,")],
    [said("user", "<bos><|im_start|> in the midst")],
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "template"),
    [("smollm2_folder", None), ("gemma3_folder", GEMMA), ("gemma3_folder", CHAT_TEMPLATE), ("smollm2_folder", GEMMA)],
)
@pytest.mark.parametrize("messages", CHATS, ids=json.dumps)
def test_real_tokenizers_give_what_transformers_gives(
    model: str, template: str | None, messages: list[dict[str, Any]], request: pytest.FixtureRequest
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(request.getfixturevalue(model))
    if template is not None:
        tokenizer.chat_template = template
    continues = messages[-1]["role"] == "assistant"
    expected = tokenizer.apply_chat_template(
        messages, tokenize=True, add_generation_prompt=not continues, continue_final_message=continues
    )["input_ids"]
    (row,) = read_rows([Record(1, {"messages": messages})], FieldNames())
    assert isinstance(row, Row)
    (ids,) = PromptEncoder(tokenizer, len(tokenizer), ChatOptions()).encode([row])
    assert ids == expected
