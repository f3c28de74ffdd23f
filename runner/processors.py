"""What is done to logits before a token is drawn from them, for the rows that ask for it.

The order is vLLM's: what may not come at all (allowed_token_ids, bad_words, min_tokens), logit_bias, the penalties of
what has come; then the sampler's own (temperature, min-p, top-k, top-p). Log-probabilities are of the logits before.
"""

from __future__ import annotations

from typing import Generic, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from runner.attention.interface import Array

MAX_BIASES = 300
"""The most tokens that a row's logit_bias may name (OpenAI's limit)."""

IN_PROMPT = 1
GENERATED = 2
"""What a token of the prompt, and each time that one is generated, count in a history."""

_AT_ONCE = 1024


class Adjustments(NamedTuple, Generic[Array]):
    """Of each sample, [S]: `row` int32, where its request stands in the history (the last row is nobody's).

    float32 [S]: `presence`, `frequency` and `repetition` penalties. `bias_ids` int32 and `biases` float32
    [S, MAX_BIASES]. `banned` uint32 [S, ceil(vocab / 32)]: a bit for each token that may not come, the lowest first.
    """

    row: Array
    presence: Array
    frequency: Array
    repetition: Array
    bias_ids: Array
    biases: Array
    banned: Array


def adjust(logits: jax.Array, adjustments: Adjustments[jax.Array], history: jax.Array) -> jax.Array:
    """Float32 logits [S, vocab] as the rows want them; history int32 [rows, vocab].

    Presence and frequency penalties are of what was generated (OpenAI's definition), the repetition penalty of the
    prompt too (CTRL, arXiv:1909.05858).
    """
    token = jnp.arange(logits.shape[-1])
    is_banned = adjustments.banned[:, token >> 5] >> (token & 31).astype(jnp.uint32) & 1
    logits = jnp.where(is_banned != 0, -jnp.inf, logits)
    logits = logits.at[jnp.arange(len(logits))[:, None], adjustments.bias_ids].add(adjustments.biases)
    seen = history[adjustments.row]
    count = seen // GENERATED
    repetition = jnp.where(seen > 0, adjustments.repetition[:, None], 1)
    logits = jnp.where(logits > 0, logits / repetition, logits * repetition)
    return logits - adjustments.frequency[:, None] * count - adjustments.presence[:, None] * (count > 0)


def remember(history: jax.Array, adjustments: Adjustments[jax.Array], token_id: jax.Array) -> jax.Array:
    """The history with the tokens that were drawn, int32 [S]; one that is none (below 0) is passed over."""
    row = jnp.where(token_id >= 0, adjustments.row, history.shape[0] - 1)
    return history.at[row, token_id].add(GENERATED)


class History:
    """What each row's tokens are so far, int32 [num_rows + 1, vocab] on the device; made when it is first taken."""

    def __init__(self, num_rows: int, vocab_size: int) -> None:
        self.shape = jax.ShapeDtypeStruct((num_rows + 1, vocab_size), jnp.int32)
        self._array: jax.Array | None = None
        self._begun: list[tuple[int, np.ndarray, np.ndarray]] = []
        self._clear = jax.jit(_clear, donate_argnums=0)
        self._add = jax.jit(_add, donate_argnums=0)

    def begin(self, row: int, token_ids: np.ndarray, num_prompt: int) -> None:
        """A row's tokens, int32 [tokens], in place of those that it had."""
        prompt, generated = np.unique(token_ids[:num_prompt]), token_ids[num_prompt:]
        counts = np.repeat(np.array([IN_PROMPT, GENERATED], np.int32), [len(prompt), len(generated)])
        self._begun.append((row, np.concatenate([prompt, generated]), counts))

    def take(self) -> jax.Array:
        """The array, to be given away; `put` is for what has become of it."""
        array = jnp.zeros(self.shape.shape, self.shape.dtype) if self._array is None else self._array
        for row, token_ids, counts in self._begun:
            array = self._clear(array, row)
            for first in range(0, len(token_ids), _AT_ONCE):
                updates = np.zeros((2, _AT_ONCE), np.int32)
                part = slice(first, first + _AT_ONCE)
                updates[:, : len(token_ids[part])] = token_ids[part], counts[part]
                array = self._add(array, row, updates)
        self._begun.clear()
        return array

    def put(self, array: jax.Array) -> None:
        self._array = array


def _clear(history: jax.Array, row: jax.Array) -> jax.Array:
    return history.at[row].set(0)


def _add(history: jax.Array, row: jax.Array, updates: jax.Array) -> jax.Array:
    """`updates` int32 [2, _AT_ONCE]: token ids, and what to add to their counts."""
    return history.at[row, updates[0]].add(updates[1])
