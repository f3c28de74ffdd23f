"""Results as flat JSON lines."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from esurge_cli.results.lines import Origin
from esurge_cli.results.result import Result, Status, Usage
from esurge_cli.rows.row import Chat, Row, RowError
from scheduler.output import TokenLogprobs

ALL = "all"

_STATUSES = {"error": Status.FAILED, "length": Status.CUT}


@dataclass(frozen=True, slots=True)
class FlatLines:
    """Which fields a line has besides the fixed ones.

    `keep_fields` are names of the row's own fields, or ("all",); one that is called as a field of the output gets
    "input_" before its name. `token_text` says what a token is as text.
    """

    token_text: Callable[[int], str]
    return_token_ids: bool = False
    include_prompt: bool = False
    keep_fields: Sequence[str] = ()
    id_field: str = "id"

    @staticmethod
    def read_origin(line: bytes) -> Origin:
        values = orjson.loads(line)
        try:
            status = _STATUSES.get(values["finish_reason"], Status.GOOD)
            return Origin(int(values["index"]), values["id"], status)
        except (KeyError, TypeError) as error:
            raise ValueError("not a line of results") from error

    def num_lines(self, num_samples: int) -> int:
        return num_samples

    def renumbered(self, lines: bytes, index: int) -> bytes:
        return b"".join(_line(orjson.loads(line) | {"index": index}) for line in lines.splitlines())

    def of_results(self, results: Sequence[Result]) -> bytes:
        """One line a sample."""
        return b"".join(_line(self._values(result)) for result in results)

    def of_error(self, error: RowError) -> bytes:
        """The one line of a row that failed: no text, no tokens."""
        values: dict[str, Any] = {
            "id": error.id,
            "index": error.index,
            "sample": 0,
            "text": None,
            "finish_reason": "error",
            "stop_reason": None,
            "usage": _usage(Usage()),
            "error": {"type": error.type.value, "message": error.message, "line": error.line},
        }
        self._keep(values, error.data)
        return _line(values)

    def _values(self, result: Result) -> dict[str, Any]:
        row = result.row
        values: dict[str, Any] = {
            "id": row.id,
            "index": row.index,
            "sample": result.sample,
            "text": result.text,
            "finish_reason": result.finish_reason.value,
            "stop_reason": result.stop_reason,
            "usage": _usage(result.usage),
            "error": None,
        }
        if self.return_token_ids:
            values["token_ids"] = result.token_ids
        if result.logprobs is not None:
            values["logprobs"] = [token_values(token, self.token_text) for token in result.logprobs]
        if result.prompt_logprobs is not None:
            values["prompt_logprobs"] = prompt_values(result.prompt_logprobs, self.token_text)
        if self.include_prompt:
            values["prompt"] = _prompt(row)
        self._keep(values, row.data)
        return values

    def _keep(self, values: dict[str, Any], data: Mapping[str, Any]) -> None:
        names = list(data) if list(self.keep_fields) == [ALL] else self.keep_fields
        for name in names:
            if name == self.id_field == "id":
                continue  # it is there already
            values[f"input_{name}" if name in values else name] = data.get(name)


def token_values(token: TokenLogprobs, token_text: Callable[[int], str]) -> dict[str, Any]:
    """A token's log-probability, and those of the likeliest."""
    top = zip(token.top_token_ids, token.top_logprobs, strict=True)
    return _token(token.token_id, token.logprob, token.rank, token_text) | {
        "top": [_token(token_id, logprob, rank, token_text) for rank, (token_id, logprob) in enumerate(top, start=1)]
    }


def prompt_values(tokens: Sequence[TokenLogprobs], token_text: Callable[[int], str]) -> list[dict[str, Any] | None]:
    """Of each token of a prompt: None of the first, which nothing stands before."""
    return [None, *(token_values(token, token_text) for token in tokens)]


def _token(token_id: int, logprob: float, rank: int, token_text: Callable[[int], str]) -> dict[str, Any]:
    return {
        "token_id": token_id,
        "logprob": logprob if math.isfinite(logprob) else None,
        "rank": rank,
        "token": token_text(token_id),
    }


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
    }


def _prompt(row: Row) -> Any:
    """As the row has it."""
    return row.prompt.messages if isinstance(row.prompt, Chat) else row.prompt


def _line(values: dict[str, Any]) -> bytes:
    return orjson.dumps(values, option=orjson.OPT_APPEND_NEWLINE)
