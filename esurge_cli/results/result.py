"""One sample of one row, finished."""

from __future__ import annotations

from dataclasses import dataclass

from esurge_cli.rows.row import Row
from scheduler import FinishReason
from scheduler.output import TokenLogprobs


@dataclass(slots=True, frozen=True)
class Usage:
    """Tokens of the prompt, those of them found in the prefix cache, and tokens generated."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


@dataclass(slots=True, frozen=True)
class Result:
    """`stop_reason` is the stop string or the token of `stop_token_ids` that ended it."""

    row: Row
    sample: int
    text: str
    finish_reason: FinishReason
    stop_reason: int | str | None
    usage: Usage
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None
