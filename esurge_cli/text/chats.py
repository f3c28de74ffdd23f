"""From the messages of a chat to one text, through the model's chat template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from esurge_cli.rows.row import ErrorType, RowFault
from esurge_cli.text.templates import read_template, reason_of
from runner.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = dict[str, Any]

_PROBE = "esurge looks for this text"

_NOT_FOR_TEMPLATES = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "sanitize_control_tokens",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""What transformers' apply_chat_template takes for itself."""


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """`wrap` makes a plain prompt one user message; `system` is put before the messages of a chat that has none.

    `template` is used instead of the model's own; `template_kwargs` are what templates get besides the messages.
    """

    wrap: bool = False
    system: str | None = None
    template: str | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """How a row wants its messages put; `continue_final_message` None goes by whether the last one is the assistant's.

    The names are transformers' and vLLM's.
    """

    tools: list[dict[str, Any]] | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None

    @classmethod
    def of_row(cls, fields: Mapping[str, Any]) -> ChatFormat:
        """Raises RowFault for a value of another type."""
        kwargs = fields.get("chat_template_kwargs") or {}
        try:
            check_template_kwargs(kwargs)
        except ValueError as error:
            raise RowFault(ErrorType.INVALID_PARAMETER, f"chat_template_kwargs: {error}") from error
        return cls(
            tools=_tools(fields.get("tools")),
            template_kwargs=kwargs,
            continue_final_message=_boolean(fields, "continue_final_message"),
            add_generation_prompt=_boolean(fields, "add_generation_prompt"),
        )


def refuse_chat_parameters(fields: Mapping[str, Any]) -> None:
    """Raises RowFault where a row that is no chat asks for what only chats have."""
    for name in ("tools", "chat_template_kwargs", "continue_final_message"):
        if fields.get(name):
            raise RowFault(ErrorType.INVALID_PARAMETER, f"{name} needs messages (or --chat)")


def check_template_kwargs(values: Any) -> Mapping[str, Any]:
    """The values as they are. Raises ValueError for what cannot be given to a template by name."""
    if not isinstance(values, dict):
        raise ValueError("it must be an object")
    taken = sorted(_NOT_FOR_TEMPLATES & values.keys())
    if taken:
        raise ValueError(f"{taken[0]} cannot be set there")
    return values


class ChatRenderer:
    """Puts chats into the text that the model was trained on."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, options: ChatOptions) -> None:
        self._tokenizer = tokenizer
        self._options = options
        self._template_of = cache(self._load_template)

    def render(self, messages: list[Message], format: ChatFormat = ChatFormat()) -> str:  # noqa: A002
        """Raises RowFault where there is no template, or it does not take the messages."""
        template = self._template_of(format.tools is not None)
        if format.tools and not template.has_tools:
            raise RowFault(ErrorType.UNSUPPORTED_PARAMETER, "the model's chat template has no place for tools")
        messages, continues = _continued([template.fitted(message) for message in self._with_system(messages)], format)
        prompts = not continues if format.add_generation_prompt is None else format.add_generation_prompt
        if prompts and continues:
            raise RowFault(
                ErrorType.INVALID_PARAMETER, "continue_final_message and add_generation_prompt do not go together"
            )
        kwargs = {**self._options.template_kwargs, **format.template_kwargs}
        try:
            return template.render(messages, format.tools, prompts, continues, kwargs)
        except Exception as error:  # whatever a template raises
            raise _fault(f"the chat template refuses the messages: {reason_of(error)}") from error

    def _with_system(self, messages: list[Message]) -> list[Message]:
        system = self._options.system
        if system is None or messages[0]["role"] == "system":
            return messages
        return [{"role": "system", "content": system}, *messages]

    def _load_template(self, for_tools: bool) -> ChatTemplate:
        """A model may have a template of its own for chats with tools."""
        source = self._options.template
        if source is None and not self._tokenizer.chat_template:
            raise _fault("the model has no chat template; give a prompt instead of messages, or --chat-template")
        if source is None:
            source = self._tokenizer.get_chat_template(tools=[] if for_tools else None)
        return ChatTemplate(self._tokenizer, source)


class ChatTemplate:
    """One template, and what it makes of a message's content: some read strings, some lists of parts, some both."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, source: str) -> None:
        self._tokenizer = tokenizer
        self._source = source
        self.has_tools = "tools" in source
        of_string = self._try(_PROBE)
        of_parts = self._try([{"type": "text", "text": _PROBE}])
        takes_strings = of_string is not None and _PROBE in of_string
        self._needs_parts = not takes_strings and of_parts is not None and _PROBE in of_parts
        # A template that knows only strings shows a list as Python writes it, or fails.
        self._takes_parts = self._needs_parts or (takes_strings and of_parts == of_string)

    def fitted(self, message: Message) -> Message:
        """A message as the template reads it.

        Parts are joined by newlines and a missing content is empty, as in vLLM; the arguments of tool calls are
        objects, as templates expect them, where OpenAI has them in a string.
        """
        content, calls = message.get("content"), message.get("tool_calls")
        if isinstance(content, str) and not calls and not self._needs_parts:
            return message
        content = content or ""
        if isinstance(content, list) and not self._takes_parts:
            content = "\n".join(part["text"] for part in content)
        elif isinstance(content, str) and self._needs_parts:
            content = [{"type": "text", "text": content}]
        fitted = {**message, "content": content}
        return fitted | {"tool_calls": [_with_parsed_arguments(call) for call in calls]} if calls else fitted

    def render(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Raises whatever the template raises."""
        text = self._tokenizer.apply_chat_template(
            messages,
            chat_template=self._source,
            tools=tools,  # type: ignore[arg-type]
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tokenize=False,
            **(kwargs or {}),
        )
        assert isinstance(text, str)
        return text

    def _try(self, content: Any) -> str | None:
        try:
            return self.render([{"role": "user", "content": content}])
        except Exception:  # whatever a template raises
            return None


def read_chat_template(path: str) -> str:
    """Raises UserError where there is none; what a template makes of messages is seen with the first of them."""
    from jinja2 import TemplateSyntaxError
    from transformers.utils.chat_template_utils import render_jinja_template

    source = read_template(Path(path))
    try:
        render_jinja_template([[]], chat_template=source)
    except TemplateSyntaxError as error:
        raise UserError(f"{path} is not a Jinja template: {error.message} (line {error.lineno})") from error
    except Exception:  # of having no messages
        pass
    return source


def _continued(messages: list[Message], format: ChatFormat) -> tuple[list[Message], bool]:  # noqa: A002
    """The messages, and whether the last one is to be continued; an empty one the model begins by itself."""
    last = messages[-1]
    continues = format.continue_final_message
    if continues is None:
        continues = last["role"] == "assistant"
    if not continues:
        return messages, False
    if last.get("tool_calls"):
        raise _fault("the last message calls tools; it has no text to continue")
    content = last["content"]
    text = content if isinstance(content, str) else "".join(part["text"] for part in content)
    if text or len(messages) == 1:
        return messages, True
    return messages[:-1], False


def _with_parsed_arguments(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return call
    try:
        parsed = orjson.loads(arguments) if arguments.strip() else {}
    except orjson.JSONDecodeError as error:
        raise _fault(f"the arguments of the tool call {function['name']} are not JSON: {error}") from error
    return call | {"function": function | {"arguments": parsed}}


def _tools(value: Any) -> list[dict[str, Any]] | None:
    if value is None or value == []:
        return None
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise RowFault(ErrorType.INVALID_PARAMETER, "tools must be a list of objects")
    return value


def _boolean(fields: Mapping[str, Any], name: str) -> bool | None:
    value = fields.get(name)
    if value is None or isinstance(value, bool):
        return value
    raise RowFault(ErrorType.INVALID_PARAMETER, f"{name} must be true or false")


def _fault(message: str) -> RowFault:
    return RowFault(ErrorType.INVALID_ROW, message)
