"""From token ids to text, as they come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_REPLACEMENT = "\ufffd"


class TokenTexts:
    """What a tokenizer's tokens mean as text: shared by all samples.

    Decoding is not the sum of what single tokens decode to: a character may be spread over tokens, a SentencePiece
    tokenizer drops the space that begins a text, and one with byte tokens (<0x0A>) reads a run of them as UTF-8 and
    replaces every byte of a run that is none. So text after the first piece is decoded behind an anchor, a token that
    is a plain letter and that keeps it from being a beginning, and the anchor's own text is cut off.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self.special_ids = frozenset(
            token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special
        )
        byte_names = [f"<0x{byte:02X}>" for byte in range(256)]
        ids: Any = tokenizer.convert_tokens_to_ids(byte_names)
        self.byte_ids = frozenset(ids) - {None, tokenizer.unk_token_id}
        self._anchor = tokenizer("a", add_special_tokens=False)["input_ids"][-1:]
        self._anchor_length = len(self.decode(self._anchor))
        self._alone: dict[int, str] = {}

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of a whole sequence; special tokens are shown."""
        text = self._tokenizer.decode(list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text

    def decode_inside(self, token_ids: Sequence[int]) -> str:
        """Their text where other text stands before them."""
        return self.decode([*self._anchor, *token_ids])[self._anchor_length :]

    def alone(self, token_id: int) -> str:
        """One token's own text, inside of others; a piece of a character shows as U+FFFD."""
        if token_id not in self._alone:
            self._alone[token_id] = self.decode_inside([token_id])
        return self._alone[token_id]


class Detokenizer:
    """The text of one sample. At its end it equals decoding all its tokens at once, special ones left out.

    Tokens whose text may still change with the next (part of a character, or of a run of byte tokens) are pending.
    """

    __slots__ = ("_is_first", "_pending", "_texts", "text")

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts
        self._pending: list[int] = []
        self._is_first = True
        self.text = ""

    def append(self, token_ids: Sequence[int]) -> None:
        special = self._texts.special_ids
        self._pending += [token_id for token_id in token_ids if token_id not in special]

    def settle(self) -> str:
        """The text that no later token can change."""
        if self._pending and self._pending[-1] not in self._texts.byte_ids:
            text = self._decode_pending()
            if text and not text.endswith(_REPLACEMENT):
                self._keep(text)
        return self.text

    def finish(self) -> str:
        """The text, when no more tokens come."""
        if self._pending:
            self._keep(self._decode_pending())
        return self.text

    def _decode_pending(self) -> str:
        decode = self._texts.decode if self._is_first else self._texts.decode_inside
        return decode(self._pending)

    def _keep(self, text: str) -> None:
        self.text += text
        self._pending = []
        self._is_first = False
