"""From a row to what the engine needs: tokens within the context, and checked parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from esurge_cli.results.result import KeptRow
from esurge_cli.rows.row import ErrorType, Row, RowError, RowFault
from esurge_cli.sampling import SamplingDefaults
from esurge_cli.text.prompts import PromptEncoder
from scheduler import SamplingParams


class TooLong(StrEnum):
    """What becomes of a prompt that leaves no room in the context."""

    ERROR = "error"
    TRUNCATE_LEFT = "truncate-left"
    TRUNCATE_RIGHT = "truncate-right"
    SKIP = "skip"


@dataclass(slots=True)
class PreparedRow:
    """A row that can run: `params.n` samples of `prompt_token_ids`, which lack `num_cut` tokens that were too many."""

    row: Row
    prompt_token_ids: list[int]
    params: SamplingParams
    num_cut: int = 0


@dataclass(slots=True, frozen=True)
class SkippedRow:
    """A row that the user wants left out."""

    index: int


Outcome = PreparedRow | RowError | SkippedRow | KeptRow


@dataclass(frozen=True, slots=True)
class Preparer:
    """`max_model_len` is the context: prompt and output together never exceed it.

    `is_ahead` where a step is scheduled before the tokens of the one before it are known.
    """

    encoder: PromptEncoder
    sampling: SamplingDefaults
    max_model_len: int
    on_too_long: TooLong = TooLong.ERROR
    is_ahead: bool = False

    def __call__(self, rows: Sequence[Row | RowError | KeptRow]) -> list[Outcome]:
        """Each row's outcome, in order; what is wrong with a row is its outcome."""
        good = [row for row in rows if isinstance(row, Row)]
        encoded = iter(self.encoder.encode(good))
        return [self._outcome(row, next(encoded)) if isinstance(row, Row) else row for row in rows]

    def _outcome(self, row: Row, encoded: list[int] | RowFault) -> Outcome:
        try:
            if isinstance(encoded, RowFault):
                raise encoded
            num_tokens = len(encoded)
            params = self.sampling.params_for(row.sampling, row.index)
            self._settle_tokens(params)
            if num_tokens >= self.max_model_len:
                if self.on_too_long is TooLong.SKIP:
                    return SkippedRow(row.index)
                encoded = self._shortened(encoded, params.max_tokens)
        except RowFault as fault:
            return RowError(row.index, row.line, row.id, fault.type, str(fault), row.data)
        params.max_tokens = min(params.max_tokens, self.max_model_len - len(encoded))
        params.min_tokens = min(params.min_tokens, params.max_tokens)
        return PreparedRow(row, encoded, params, num_tokens - len(encoded))

    def _settle_tokens(self, params: SamplingParams) -> None:
        """Raises RowFault for tokens that the model does not have, and for what cannot be asked for ahead of it."""
        for name in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
            for token_id in getattr(params, name) or ():
                if not 0 <= token_id < self.encoder.vocab_size:
                    raise RowFault(
                        ErrorType.INVALID_PARAMETER,
                        f"{name}: the token id {token_id} is not one of the model's {self.encoder.vocab_size}",
                    )
        if params.bad_words:
            params.bad_words_token_ids = self.encoder.spellings(params.bad_words)
            if self.is_ahead and any(len(token_ids) > 1 for token_ids in params.bad_words_token_ids):
                raise RowFault(
                    ErrorType.UNSUPPORTED_PARAMETER,
                    "bad_words of several tokens do not go together with --async-scheduling",
                )

    def _shortened(self, ids: list[int], max_tokens: int) -> list[int]:
        """What is kept of a prompt that is too long: all but the room for `max_tokens`, and at least half the context.

        The beginning-of-sequence token stays where it is. Raises RowFault where nothing is to be cut.
        """
        if self.on_too_long is TooLong.ERROR:
            raise RowFault(
                ErrorType.PROMPT_TOO_LONG,
                f"the prompt of {len(ids)} tokens leaves no room to generate in a context of {self.max_model_len}",
            )
        num_kept = max(self.max_model_len - max(max_tokens, 1), (self.max_model_len + 1) // 2)
        if self.on_too_long is TooLong.TRUNCATE_RIGHT:
            return ids[:num_kept]
        has_bos = ids[0] == self.encoder.bos_token_id
        return ids[:1] + ids[1 - num_kept :] if has_bos and num_kept > 1 else ids[-num_kept:]
