"""What has become of a row."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from esurge_cli.rows.row import Row
from scheduler import FinishReason
from scheduler.output import TokenLogprobs


class Status(IntEnum):
    """How a row ended."""

    GOOD = 0
    CUT = 1
    """Good, but at least a sample of it was ended by its length."""
    FAILED = 2
    LEFT_OUT = 3
    """As the user wants rows of its kind to be: it has no lines."""


@dataclass(slots=True, frozen=True)
class Usage:
    """Tokens of the prompt, those of them found in the prefix cache, and tokens generated."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


@dataclass(slots=True, frozen=True)
class Result:
    """One sample, finished. `stop_reason` is the stop string or the token of `stop_token_ids` that ended it.

    `prompt_logprobs` are of all tokens of the prompt but the first.
    """

    row: Row
    sample: int
    text: str
    finish_reason: FinishReason
    stop_reason: int | str | None
    usage: Usage
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None
    prompt_logprobs: list[TokenLogprobs] | None = None


@dataclass(slots=True, frozen=True)
class KeptRow:
    """A row whose `lines` an earlier run has made, when it had another index."""

    index: int
    lines: bytes
    status: Status
