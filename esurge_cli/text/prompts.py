"""From a row's prompt to token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from esurge_cli.rows.row import Chat, ErrorType, Row, RowFault
from esurge_cli.text.chats import ChatFormat, ChatOptions, ChatRenderer, refuse_chat_parameters
from esurge_cli.text.templates import reason_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class PromptEncoder:
    """Tokenizes prompts, many at a time: the tokenizer spreads them over the cores, and lets other threads run.

    A plain prompt gets the special tokens that the tokenizer adds by itself; a chat gets those of its template, and
    the beginning-of-sequence token where the tokenizer adds one and the template does not. No sequence has it twice.
    A prompt that has no tokens even so is a fault, as in vLLM.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocab_size: int, chat: ChatOptions) -> None:
        self._tokenizer = tokenizer
        self.vocab_size = vocab_size
        self._wraps = chat.wrap
        self._chats = ChatRenderer(tokenizer, chat)
        # It also turns off truncation and padding, which a tokenizer's file may ask for.
        first = tokenizer("")["input_ids"][:1]
        self.bos_token_id: int | None = first[0] if first and first[0] == tokenizer.bos_token_id else None

    def encode(self, rows: Sequence[Row]) -> list[list[int] | RowFault]:
        """The token ids of each row's prompt, or why it has none."""
        encoded: list[list[int] | RowFault] = [[] for _ in rows]
        texts: dict[bool, list[tuple[int, str]]] = {True: [], False: []}
        for i, row in enumerate(rows):
            try:
                prompt = row.prompt
                if isinstance(prompt, Chat) or (self._wraps and isinstance(prompt, str)):
                    texts[False].append((i, self._render(prompt, row.data)))
                    continue
                refuse_chat_parameters(row.data)
                if isinstance(prompt, list):
                    encoded[i] = self._checked_ids(prompt)
                else:
                    texts[True].append((i, prompt))
            except RowFault as fault:
                encoded[i] = fault
        for add_special_tokens, group in texts.items():
            for (i, _), ids in zip(group, self._tokenize([text for _, text in group], add_special_tokens), strict=True):
                encoded[i] = ids if isinstance(ids, RowFault) else self._with_one_bos(ids)
        return [RowFault(ErrorType.INVALID_ROW, "the prompt has no tokens") if ids == [] else ids for ids in encoded]

    def _render(self, prompt: str | Chat, fields: dict[str, Any]) -> str:
        messages = prompt.messages if isinstance(prompt, Chat) else [{"role": "user", "content": prompt}]
        return self._chats.render(messages, ChatFormat.of_row(fields))

    def spellings(self, words: Sequence[str]) -> list[list[int]]:
        """The words as tokens, each as it stands within a text after a space and without one. Raises RowFault."""
        texts = [prefix + word.lstrip() for word in words for prefix in ("", " ")]
        spellings: dict[tuple[int, ...], None] = {}
        for ids in self._tokenize(texts, add_special_tokens=False):
            if isinstance(ids, RowFault):
                raise ids
            spellings[tuple(ids)] = None
        return [list(spelling) for spelling in spellings if spelling]

    def _tokenize(self, texts: list[str], add_special_tokens: bool) -> list[list[int] | RowFault]:
        """Where one text fails, it fails alone."""
        try:
            return list(self._ids_of(texts, add_special_tokens))
        except Exception as error:  # whatever a tokenizer raises
            if len(texts) == 1:
                return [RowFault(ErrorType.INVALID_ROW, f"the tokenizer refuses the prompt: {reason_of(error)}")]
            return [result for text in texts for result in self._tokenize([text], add_special_tokens)]

    def _ids_of(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        """Through the tokenizer's Rust part where it has one: around it, transformers takes as much time again."""
        if not texts:
            return []
        if self._tokenizer.is_fast:
            encodings = self._tokenizer.backend_tokenizer.encode_batch_fast(
                texts, add_special_tokens=add_special_tokens
            )
            return [encoding.ids for encoding in encodings]
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
            if not 0 <= id_ < self.vocab_size:
                raise RowFault(ErrorType.INVALID_ROW, f"the token id {id_} is not one of the model's {self.vocab_size}")
        return ids
