"""From a row's prompt to token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from esurge_cli.rows.row import Chat, ErrorType, Row, RowFault

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """`wrap` makes a plain prompt one user message; `system` is put before the messages of a chat that has none."""

    wrap: bool = False
    system: str | None = None


class PromptEncoder:
    """Tokenizes prompts, many at a time: the tokenizer spreads them over the cores, and lets other threads run.

    A plain prompt gets the special tokens that the tokenizer adds by itself; a chat gets those of its template, and
    the beginning-of-sequence token where the tokenizer adds one and the template does not. No sequence has it twice.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocab_size: int, chat: ChatOptions) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._chat = chat
        first = tokenizer("")["input_ids"][:1]
        self.bos_token_id: int | None = first[0] if first and first[0] == tokenizer.bos_token_id else None

    def encode(self, rows: Sequence[Row]) -> list[list[int] | RowFault]:
        """The token ids of each row's prompt, or why it has none."""
        encoded: list[list[int] | RowFault] = [[] for _ in rows]
        texts: dict[bool, list[tuple[int, str]]] = {True: [], False: []}
        for i, row in enumerate(rows):
            try:
                prompt = self._as_chat(row.prompt)
                if isinstance(prompt, list):
                    encoded[i] = self._checked_ids(prompt)
                elif isinstance(prompt, Chat):
                    texts[False].append((i, self._render(prompt)))
                else:
                    texts[True].append((i, prompt))
            except RowFault as fault:
                encoded[i] = fault
        for add_special_tokens, group in texts.items():
            for (i, _), ids in zip(group, self._tokenize(group, add_special_tokens), strict=True):
                encoded[i] = self._with_one_bos(ids)
        return [RowFault(ErrorType.INVALID_ROW, "the prompt has no tokens") if ids == [] else ids for ids in encoded]

    def _as_chat(self, prompt: str | list[int] | Chat) -> str | list[int] | Chat:
        if isinstance(prompt, str) and self._chat.wrap:
            prompt = Chat([{"role": "user", "content": prompt}])
        if isinstance(prompt, Chat) and self._chat.system is not None and prompt.messages[0]["role"] != "system":
            return Chat([{"role": "system", "content": self._chat.system}, *prompt.messages])
        return prompt

    def _render(self, chat: Chat) -> str:
        if not self._tokenizer.chat_template:
            raise RowFault(ErrorType.INVALID_ROW, "the model has no chat template; give a prompt instead of messages")
        try:
            text = self._tokenizer.apply_chat_template(chat.messages, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # whatever a template raises
            raise RowFault(ErrorType.INVALID_ROW, f"the chat template refuses the messages: {error}") from error
        assert isinstance(text, str)
        return text

    def _tokenize(self, group: list[tuple[int, str]], add_special_tokens: bool) -> list[list[int]]:
        if not group:
            return []
        texts = [text for _, text in group]
        encoding: Any = self._tokenizer(texts, add_special_tokens=add_special_tokens, return_attention_mask=False)
        return encoding["input_ids"]

    def _with_one_bos(self, ids: list[int]) -> list[int]:
        bos = self.bos_token_id
        if bos is None:
            return ids
        if ids[:2] == [bos, bos]:
            return ids[1:]
        return ids if ids[:1] == [bos] else [bos, *ids]

    def _checked_ids(self, ids: list[int]) -> list[int]:
        for id_ in (min(ids, default=0), max(ids, default=0)):
            if not 0 <= id_ < self._vocab_size:
                raise RowFault(
                    ErrorType.INVALID_ROW, f"the token id {id_} is not one of the model's {self._vocab_size}"
                )
        return ids
