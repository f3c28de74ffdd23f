"""The host's side of the processors: which rows want their logits adjusted, and how."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from runner.processors import MAX_BIASES, Adjustments, History
from scheduler import NewRequestData, SamplingParams


@dataclass(slots=True)
class _Wishes:
    """What one request asks for that depends on its tokens so far."""

    num_prompt: int
    min_tokens: int
    stop_ids: list[int]
    bad_words: list[list[int]]


class Adjuster:
    """A row's wishes, by the rows of the batch. Those of rows that have none cost nothing."""

    def __init__(self, num_rows: int, vocab_size: int) -> None:
        self.history = History(num_rows, vocab_size)
        self._vocab_size = vocab_size
        self._wishes: dict[int, _Wishes] = {}
        # the last row is nobody's and neutral
        self._fixed = Adjustments(
            row=np.full(num_rows + 1, num_rows, np.int32),
            presence=np.zeros(num_rows + 1, np.float32),
            frequency=np.zeros(num_rows + 1, np.float32),
            repetition=np.ones(num_rows + 1, np.float32),
            bias_ids=np.zeros((num_rows + 1, MAX_BIASES), np.int32),
            biases=np.zeros((num_rows + 1, MAX_BIASES), np.float32),
            banned=np.zeros((num_rows + 1, -(-vocab_size // 32)), np.uint32),
        )

    def begin(self, row: int, request: NewRequestData, token_ids: np.ndarray) -> None:
        """A request takes the row; `token_ids`, int32, are all of its tokens so far."""
        self._wishes.pop(row, None)
        for array in self._fixed:
            array[row] = array[-1]
        params = request.sampling_params
        if not is_adjusting(params):
            return
        num_prompt = len(request.prompt_token_ids)
        self._wishes[row] = _Wishes(num_prompt, params.min_tokens, request.stop_token_ids, params.bad_words_token_ids)
        self._fix(row, params)
        if params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1:
            self._fixed.row[row] = row
            self.history.begin(row, token_ids, num_prompt)

    def is_adjusting(self, row: int) -> bool:
        return row in self._wishes

    def gather(
        self, rows: np.ndarray, positions: np.ndarray, num_samples: int, token_ids: np.ndarray, num_known: np.ndarray
    ) -> Adjustments[np.ndarray] | None:
        """Of samples of `rows`, int32 [samples], at `positions`, padded to `num_samples`; None where no row has wishes.

        `token_ids` int32 [rows, tokens] and `num_known` int32 [rows] are those of all rows of the batch. Raises
        ValueError for bad words of several tokens where the token before is not known yet.
        """
        if not any(row in self._wishes for row in rows.tolist()):
            return None
        padded = np.full(num_samples, len(self._fixed.row) - 1, np.int32)
        padded[: len(rows)] = rows
        adjustments = Adjustments(*(array[padded] for array in self._fixed))
        for sample, (row, position) in enumerate(zip(rows.tolist(), positions.tolist(), strict=True)):
            wishes = self._wishes.get(row)
            if wishes is None:
                continue
            if position - wishes.num_prompt < wishes.min_tokens:
                _ban(adjustments.banned[sample], wishes.stop_ids)
            if wishes.bad_words:
                if num_known[row] < position:
                    raise ValueError("bad_words of several tokens do not go together with scheduling ahead")
                so_far = token_ids[row, wishes.num_prompt : position].tolist()
                _ban(adjustments.banned[sample], _ends_of(wishes.bad_words, so_far))
        return adjustments

    def empty(self, num_samples: int) -> Adjustments[np.ndarray]:
        """Of the right shapes, to trace programs with."""
        return Adjustments(*(array[np.full(num_samples, len(array) - 1)] for array in self._fixed))

    def _fix(self, row: int, params: SamplingParams) -> None:
        fixed = self._fixed
        fixed.presence[row] = params.presence_penalty
        fixed.frequency[row] = params.frequency_penalty
        fixed.repetition[row] = params.repetition_penalty
        for place, (token_id, bias) in enumerate((params.logit_bias or {}).items()):
            fixed.bias_ids[row, place], fixed.biases[row, place] = token_id, bias
        if params.allowed_token_ids is not None:
            fixed.banned[row] = 0xFFFFFFFF
            _allow(fixed.banned[row], params.allowed_token_ids)
        _ban(fixed.banned[row], [ids[0] for ids in params.bad_words_token_ids if len(ids) == 1])


def is_adjusting(params: SamplingParams) -> bool:
    """Whether anything is to be done to the logits of a request."""
    return bool(
        params.presence_penalty
        or params.frequency_penalty
        or params.repetition_penalty != 1
        or params.logit_bias
        or params.allowed_token_ids is not None
        or params.bad_words_token_ids
        or params.min_tokens
    )


def _ends_of(bad_words: list[list[int]], so_far: list[int]) -> list[int]:
    """The tokens that would complete a bad word of several."""
    return [ids[-1] for ids in bad_words if len(ids) > 1 and so_far[1 - len(ids) :] == ids[:-1]]


def _ban(banned: np.ndarray, token_ids: list[int]) -> None:
    """A tokenizer may have tokens to stop at that the model has not."""
    for token_id in token_ids:
        if token_id >> 5 >= len(banned):
            continue
        banned[token_id >> 5] |= np.uint32(1 << (token_id & 31))


def _allow(banned: np.ndarray, token_ids: list[int]) -> None:
    for token_id in token_ids:
        banned[token_id >> 5] &= np.uint32(~(1 << (token_id & 31)) & 0xFFFFFFFF)
