"""How the tokens of one request are chosen, and when it stops."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class SamplingParams:
    """Names and meanings are OpenAI's and vLLM's; `temperature` 0 is greedy, `top_k` 0 (or -1) is no limit.

    `seed` None leaves the choice of a seed to the runner. `stop` strings are matched on text by whoever detokenizes;
    the scheduler knows token ids only. So it is with `bad_words`: `bad_words_token_ids` are they as tokens, in each way
    that they may be spelt. `logprobs` and `prompt_logprobs` are the number of alternatives to report
    (0: the chosen token only; None: nothing). `max_tokens` 0 scores the prompt and generates nothing.
    Raises ValueError for a value out of its range.
    """

    n: int = 1
    max_tokens: int = 512
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: list[str] = field(default_factory=list)
    stop_token_ids: list[int] = field(default_factory=list)
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: dict[int, float] | None = None
    bad_words: list[str] = field(default_factory=list)
    guided_decoding: dict[str, Any] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words_token_ids: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                allowed = f"at least {low:g}" if high == _INFINITY else f"between {low:g} and {high:g}"
                raise ValueError(f"{name} must be {allowed}, not {value}")
        if self.top_p == 0:
            raise ValueError("top_p must be above 0")
        if self.repetition_penalty == 0:
            raise ValueError("repetition_penalty must be above 0")


_INFINITY = float("inf")
_RANGES: dict[str, tuple[float, float]] = {
    "n": (1, _INFINITY),
    "max_tokens": (0, _INFINITY),
    "min_tokens": (0, _INFINITY),
    "temperature": (0, 1e6),
    "top_p": (0, 1),
    "top_k": (-1, _INFINITY),
    "min_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "repetition_penalty": (0, 1e6),
    "logprobs": (0, _INFINITY),
    "prompt_logprobs": (0, _INFINITY),
}
