"""Results as OpenAI's Batch API writes them: https://platform.openai.com/docs/api-reference/batch/request-output."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from esurge_cli.results.flat import prompt_values
from esurge_cli.results.lines import Origin
from esurge_cli.results.result import Result, Status
from esurge_cli.rows.row import Chat, ErrorType, RowError
from scheduler.output import TokenLogprobs

_UNLIKELY = -9999.0
"""What OpenAI writes for a log-probability that is not a finite number."""

_REPLACEMENT = "\ufffd"

_CODES = {
    ErrorType.INVALID_JSON: "invalid_json_line",
    ErrorType.PROMPT_TOO_LONG: "context_length_exceeded",
}
"""OpenAI's words for what it knows; other codes are our own error types."""


@dataclass(frozen=True, slots=True)
class OpenAILines:
    """One line a row, whose samples are the choices of a chat completion or, for a plain prompt, of a text completion.

    `model` is what the responses call the model, and `token_text` says what a token is as text. All that OpenAI takes
    from the clock or at random derives from the row's index instead, so that equal runs write equal bytes.
    """

    model: str
    token_text: Callable[[int], str]

    @staticmethod
    def read_origin(line: bytes) -> Origin:
        values = orjson.loads(line)
        try:
            index = int(values["id"].removeprefix("batch_req_"))
            response = values["response"]
            return Origin(index, values["custom_id"], _status(response["status_code"], response["body"]))
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError("not a line of a batch") from error

    def num_lines(self, num_samples: int) -> int:
        return 1

    def renumbered(self, lines: bytes, index: int) -> bytes:
        values = orjson.loads(lines)
        body = values["response"]["body"]
        if "id" in body:
            body["id"] = f"{body['id'].partition('-')[0]}-{index}"
        return _line(index, values["custom_id"], values["response"]["status_code"], body)

    def of_results(self, results: Sequence[Result]) -> bytes:
        row = results[0].row
        is_chat = isinstance(row.prompt, Chat)
        body = {
            "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{row.index}",
            "object": "chat.completion" if is_chat else "text_completion",
            "created": 0,
            "model": self.model,
            "choices": [self._chat_choice(result) if is_chat else self._text_choice(result) for result in results],
            "usage": _usage(results),
            "system_fingerprint": None,
        }
        return _line(row.index, row.id, 200, body)

    def of_error(self, error: RowError) -> bytes:
        """As OpenAI writes a request that it refused: https://github.com/openai/openai-openapi/issues/302."""
        is_ours = error.type is ErrorType.ENGINE
        body = {
            "error": {
                "message": f"{error.message} (line {error.line})",
                "type": "server_error" if is_ours else "invalid_request_error",
                "param": None,
                "code": _CODES.get(error.type, error.type.value),
            }
        }
        return _line(error.index, error.id, 500 if is_ours else 400, body)

    def _chat_choice(self, result: Result) -> dict[str, Any]:
        return {
            "index": result.sample,
            "message": {"role": "assistant", "content": result.text, "refusal": None},
            "logprobs": None if result.logprobs is None else self._chat_logprobs(result.logprobs),
            "finish_reason": result.finish_reason.value,
        } | self._of_prompt(result)

    def _text_choice(self, result: Result) -> dict[str, Any]:
        return {
            "index": result.sample,
            "text": result.text,
            "logprobs": None if result.logprobs is None else self._text_logprobs(result.logprobs),
            "finish_reason": result.finish_reason.value,
        } | self._of_prompt(result)

    def _of_prompt(self, result: Result) -> dict[str, Any]:
        """OpenAI has no word for it; vLLM puts it here, too."""
        if result.prompt_logprobs is None:
            return {}
        return {"prompt_logprobs": prompt_values(result.prompt_logprobs, self.token_text)}

    def _chat_logprobs(self, tokens: Sequence[TokenLogprobs]) -> dict[str, Any]:
        content = [
            self._chat_token(token.token_id, token.logprob)
            | {"top_logprobs": [self._chat_token(*pair) for pair in _likeliest(token)]}
            for token in tokens
        ]
        return {"content": content, "refusal": None}

    def _chat_token(self, token_id: int, logprob: float) -> dict[str, Any]:
        """A token that is a piece of a character has no bytes of its own that its text would show."""
        text = self.token_text(token_id)
        return {
            "token": text,
            "logprob": _finite(logprob),
            "bytes": None if _REPLACEMENT in text else list(text.encode()),
        }

    def _text_logprobs(self, tokens: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """Offsets count characters from where the completion begins."""
        texts = [self.token_text(token.token_id) for token in tokens]
        offsets = [0]
        for text in texts:
            offsets.append(offsets[-1] + len(text))
        return {
            "text_offset": offsets[:-1],
            "token_logprobs": [_finite(token.logprob) for token in tokens],
            "tokens": texts,
            "top_logprobs": [self._by_text(token) for token in tokens],
        }

    def _by_text(self, token: TokenLogprobs) -> dict[str, float]:
        """The likeliest tokens and the sampled one; of those that read alike the likeliest counts."""
        by_text: dict[str, float] = {}
        for token_id, logprob in [*_likeliest(token), (token.token_id, token.logprob)]:
            by_text.setdefault(self.token_text(token_id), _finite(logprob))
        return by_text


def _status(status_code: int, body: dict[str, Any]) -> Status:
    if status_code != 200:
        return Status.FAILED
    is_cut = any(choice["finish_reason"] == "length" for choice in body["choices"])
    return Status.CUT if is_cut else Status.GOOD


def _likeliest(token: TokenLogprobs) -> list[tuple[int, float]]:
    return list(zip(token.top_token_ids, token.top_logprobs, strict=True))


def _usage(results: Sequence[Result]) -> dict[str, Any]:
    """The prompt counts once, however many samples there are, and what the first one found cached."""
    first = results[0].usage
    num_completion_tokens = sum(result.usage.completion_tokens for result in results)
    return {
        "prompt_tokens": first.prompt_tokens,
        "completion_tokens": num_completion_tokens,
        "total_tokens": first.prompt_tokens + num_completion_tokens,
        "prompt_tokens_details": {"cached_tokens": first.cached_tokens},
    }


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _UNLIKELY


def _line(index: int, row_id: str | int | None, status_code: int, body: dict[str, Any]) -> bytes:
    """OpenAI's custom ids are strings; a row without an id has none."""
    values = {
        "id": f"batch_req_{index}",
        "custom_id": None if row_id is None else str(row_id),
        "response": {"status_code": status_code, "request_id": f"req_{index}", "body": body},
        "error": None,
    }
    return orjson.dumps(values, option=orjson.OPT_APPEND_NEWLINE)
