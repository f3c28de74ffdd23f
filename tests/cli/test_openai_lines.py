"""Lines as OpenAI's Batch API writes them, read by OpenAI's own client."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion
from openai.types.shared import ErrorObject

from esurge_cli.results.openai import OpenAILines
from esurge_cli.results.result import Result, Usage
from esurge_cli.rows.fields import FieldNames, read_rows
from esurge_cli.rows.row import ErrorType, Record, Row, RowError
from esurge_cli.sampling import SamplingDefaults
from scheduler import FinishReason
from scheduler.output import TokenLogprobs

TEXTS = {1: " Par", 2: "is", 3: "\ufffd", 4: "!", 5: "é"}
LINES = OpenAILines("tiny", TEXTS.__getitem__)

# https://platform.openai.com/docs/guides/batch, the bodies of its example file
DOCUMENTED = [
    {
        "id": "request-1",
        "model": "gpt-3.5-turbo-0125",
        "messages": [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": "Hello world!"},
        ],
        "max_tokens": 1000,
    },
    {
        "id": "request-2",
        "model": "gpt-3.5-turbo-0125",
        "messages": [
            {"role": "system", "content": "You are an unhelpful assistant."},
            {"role": "user", "content": "Hello world!"},
        ],
        "max_tokens": 1000,
    },
]


def row(**fields: Any) -> Row:
    (made,) = read_rows([Record(1, {"id": "a"} | fields)], FieldNames())
    assert isinstance(made, Row)
    return made


CHAT = row(messages=[{"role": "user", "content": "Hi"}])
PLAIN = row(prompt="Hi")


def result(row: Row, sample: int = 0, reason: FinishReason = FinishReason.STOP, **changes: Any) -> Result:
    values: dict[str, Any] = {"usage": Usage(5, 4, 3), "token_ids": [1, 2], "logprobs": None} | changes
    return Result(row=row, sample=sample, text=f"text {sample}", finish_reason=reason, stop_reason=None, **values)


def body_of(*results: Result) -> dict[str, Any]:
    return json.loads(LINES.of_results(results))["response"]["body"]


def test_a_line_is_what_openai_documents() -> None:
    assert json.loads(LINES.of_results([result(CHAT)])) == {
        "id": "batch_req_0",
        "custom_id": "a",
        "response": {
            "status_code": 200,
            "request_id": "req_0",
            "body": {
                "id": "chatcmpl-0",
                "object": "chat.completion",
                "created": 0,
                "model": "tiny",
                "choices": [
                    {
                        "index": 0,
                        "message": {"role": "assistant", "content": "text 0", "refusal": None},
                        "logprobs": None,
                        "finish_reason": "stop",
                    }
                ],
                "usage": {
                    "prompt_tokens": 5,
                    "completion_tokens": 3,
                    "total_tokens": 8,
                    "prompt_tokens_details": {"cached_tokens": 4},
                },
                "system_fingerprint": None,
            },
        },
        "error": None,
    }


def test_openais_example_file_passes_through() -> None:
    records = [Record(line, body) for line, body in enumerate(DOCUMENTED, start=1)]
    for made, body in zip(read_rows(records, FieldNames()), DOCUMENTED, strict=True):
        assert isinstance(made, Row)
        assert SamplingDefaults.of({}, {}).params_for(made.sampling, made.index).max_tokens == 1000
        line = json.loads(LINES.of_results([result(made)]))
        assert line["custom_id"] == body["id"]
        completion = ChatCompletion.model_validate(line["response"]["body"], strict=True)
        assert completion.choices[0].message.content == "text 0"


def test_a_plain_prompt_has_a_text_completion() -> None:
    completion = Completion.model_validate(body_of(result(PLAIN, reason=FinishReason.LENGTH)), strict=True)
    assert (completion.id, completion.choices[0].text) == ("cmpl-0", "text 0")
    assert completion.choices[0].finish_reason == "length"
    assert completion.usage is not None and completion.usage.prompt_tokens_details is not None
    assert completion.usage.prompt_tokens_details.cached_tokens == 4


def test_samples_are_the_choices_of_one_line_and_the_prompt_counts_once() -> None:
    results = [result(CHAT, sample) for sample in range(3)]
    assert LINES.of_results(results).count(b"\n") == 1
    completion = ChatCompletion.model_validate(body_of(*results), strict=True)
    assert [(choice.index, choice.message.content) for choice in completion.choices] == [
        (0, "text 0"),
        (1, "text 1"),
        (2, "text 2"),
    ]
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens, completion.usage.total_tokens) == (
        5,
        9,
        14,
    )


LOGPROBS = [
    TokenLogprobs(1, -0.5, 1, [1, 3], [-0.5, -math.inf]),
    TokenLogprobs(2, -2.0, 4, [4, 5], [-0.1, -0.2]),
    TokenLogprobs(3, -0.25, 1, [], []),
]


def test_log_probabilities_of_a_chat() -> None:
    completion = ChatCompletion.model_validate(body_of(result(CHAT, logprobs=LOGPROBS)), strict=True)
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    first, second, third = logprobs.content
    assert (first.token, first.logprob, first.bytes) == (" Par", -0.5, [32, 80, 97, 114])
    assert [(top.token, top.logprob) for top in first.top_logprobs] == [(" Par", -0.5), ("\ufffd", -9999.0)]
    assert [(top.token, top.bytes) for top in second.top_logprobs] == [("!", [33]), ("é", [0xC3, 0xA9])]
    assert (third.bytes, third.top_logprobs) == (None, [])  # a piece of a character


def test_log_probabilities_of_a_text_completion() -> None:
    completion = Completion.model_validate(body_of(result(PLAIN, logprobs=LOGPROBS)), strict=True)
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == [" Par", "is", "\ufffd"]
    assert logprobs.text_offset == [0, 4, 6]
    assert logprobs.token_logprobs == [-0.5, -2.0, -0.25]
    # The sampled token is there besides the likeliest.
    assert logprobs.top_logprobs == [
        {" Par": -0.5, "\ufffd": -9999.0},
        {"!": -0.1, "é": -0.2, "is": -2.0},
        {"\ufffd": -0.25},
    ]


@pytest.mark.parametrize(
    ("type_", "status", "kind", "code"),
    [
        (ErrorType.INVALID_JSON, 400, "invalid_request_error", "invalid_json_line"),
        (ErrorType.PROMPT_TOO_LONG, 400, "invalid_request_error", "context_length_exceeded"),
        (ErrorType.INVALID_ROW, 400, "invalid_request_error", "invalid_row"),
        (ErrorType.ENGINE, 500, "server_error", "engine"),
    ],
)
def test_a_bad_row_is_a_request_that_was_refused(type_: ErrorType, status: int, kind: str, code: str) -> None:
    line = json.loads(LINES.of_error(RowError(3, 7, "a", type_, "oh")))
    assert (line["id"], line["custom_id"], line["error"]) == ("batch_req_3", "a", None)
    assert line["response"]["status_code"] == status
    error = ErrorObject.model_validate(line["response"]["body"]["error"], strict=True)
    assert (error.message, error.type, error.param, error.code) == ("oh (line 7)", kind, None, code)


def test_custom_ids_are_strings_or_missing() -> None:
    ids = [7, None, "x"]
    lines = [json.loads(LINES.of_error(RowError(0, 1, id_, ErrorType.INVALID_ROW, "oh"))) for id_ in ids]
    assert [line["custom_id"] for line in lines] == ["7", None, "x"]
