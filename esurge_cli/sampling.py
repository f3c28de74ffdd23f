"""Which sampling parameters are in force for a row: its own, then the flags, then the model's, then the defaults."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from esurge_cli.rows.row import ErrorType, RowFault
from scheduler import SamplingParams

MAX_LOGPROBS = 20
"""What the runner's sampler reports at most (OpenAI's and vLLM's limit)."""

MAX_BIASES = 300
"""What the runner holds of one row's logit_bias (OpenAI's limit)."""

MAX_SAMPLES = 16_384
"""Of one row (vLLM's limit): all of them are in flight at once."""

_MAX_TOP_K = (1 << 31) - 1
"""What the sampler can hold; any number beyond the vocabulary is no limit."""

NOT_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "guided_decoding": (),
    "response_format": ({"type": "text"},),
    "best_of": (1,),
    "echo": (False,),
    "suffix": (),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "tool_choice": ("auto", "none"),
}
"""Parameters of OpenAI's and vLLM's that are refused by name, and the values (null besides) that ask for nothing."""

_MODEL_NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}
"""What is taken from generation_config.json (as vLLM does), and what it is called here."""

_ALIASES = {"max_completion_tokens": "max_tokens"}


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What rows that say nothing get. `seed` is what their seeds derive from."""

    values: Mapping[str, Any]
    seed: int = 0

    @classmethod
    def of(cls, flags: Mapping[str, Any], generation_config: Mapping[str, Any], seed: int = 0) -> SamplingDefaults:
        """Raises ValueError for a flag out of its range."""
        model = {
            name: generation_config[theirs]
            for theirs, name in _MODEL_NAMES.items()
            if generation_config.get(theirs) is not None
        }
        values = model | _checked(flags)
        _params(values)
        return cls(values, seed)

    def params_for(self, own: Mapping[str, Any], index: int) -> SamplingParams:
        """Parameters of the row at `index` of the input, whose own ones are `own`. Raises RowFault.

        A row without a seed gets one that depends on nothing but `--seed` and its index.
        """
        refuse_unsupported(own)
        try:
            params = _params({**self.values, **_checked(own)})
        except ValueError as error:
            raise RowFault(ErrorType.INVALID_PARAMETER, str(error)) from error
        if params.seed is None:
            params.seed = derived_seed(self.seed, index)
        return params

    def draws_by_index(self, own: Mapping[str, Any]) -> bool:
        """Whether a row's random numbers derive from its index: it is not greedy, and has no seed of its own."""
        temperature = own.get("temperature")
        is_greedy = (self.values.get("temperature") if temperature is None else temperature) == 0
        return not is_greedy and own.get("seed") is None

    def num_samples(self, own: Mapping[str, Any]) -> int:
        """How many samples a row has, if it is a good one."""
        n = own.get("n")
        if n is None:
            n = self.values.get("n", 1)
        return n if isinstance(n, int) else 1

    def describe(self) -> str:
        """What is in force where a row says nothing, for the header."""
        params = _params(self.values)
        shown = {"temperature": params.temperature, "max_tokens": params.max_tokens} | dict(self.values)
        return "  ".join(f"{name} {value}" for name, value in shown.items())


def derived_seed(seed: int, index: int) -> int:
    """The seed of a row without one: the first 64 bits of BLAKE2b over "SEED/INDEX" in decimal, big-endian."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest())


def refuse_unsupported(own: Mapping[str, Any]) -> None:
    """Raises RowFault where a parameter that is not supported asks for something."""
    asked = [name for name, value in own.items() if name in NOT_SUPPORTED and not _is_neutral(name, value)]
    if asked:
        raise RowFault(ErrorType.UNSUPPORTED_PARAMETER, f"not supported yet: {', '.join(asked)}")


def ignored_of_model(generation_config: Mapping[str, Any]) -> list[str]:
    """The parameters that the model's generation_config.json sets and that are not supported."""
    return [
        f"{name} {value}"
        for name, value in generation_config.items()
        if name in NOT_SUPPORTED and not _is_neutral(name, value)
    ]


def _is_neutral(name: str, value: Any) -> bool:
    return value is None or value in NOT_SUPPORTED[name]


def _params(values: Mapping[str, Any]) -> SamplingParams:
    """Raises ValueError for a value out of range."""
    params = SamplingParams(**values)
    if params.min_tokens > params.max_tokens:
        raise ValueError(f"min_tokens {params.min_tokens} is more than max_tokens {params.max_tokens}")
    return params


def _checked(values: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters among `values` by their names in SamplingParams; nulls count as not given. Raises ValueError."""
    checked = {}
    for name, value in _logprobs_as_number(values).items():
        ours = _ALIASES.get(name, name)
        if ours not in _CHECKS or value is None:
            continue
        if ours in checked and name in _ALIASES:
            raise ValueError(f"{name} and {ours} are both given")
        checked[ours] = _CHECKS[ours](name, value)
    return checked


def _logprobs_as_number(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """OpenAI's chat completions say `"logprobs": true, "top_logprobs": 5` where all others say `"logprobs": 5`."""
    if "logprobs" not in values and "top_logprobs" not in values:
        return values
    rest = {name: value for name, value in values.items() if name not in ("logprobs", "top_logprobs")}
    logprobs, top = values.get("logprobs"), values.get("top_logprobs")
    if top is not None and logprobs is not True:
        raise ValueError("top_logprobs needs logprobs to be true")
    if logprobs is True:
        return rest | {"logprobs": 0 if top is None else top}
    return rest if logprobs is False else rest | {"logprobs": logprobs}


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or value in (_INF, -_INF):
        raise ValueError(f"{name} must be a whole number, not {_shown(value)}")
    if value != int(value):
        raise ValueError(f"{name} must be a whole number, not {value}")
    return int(value)


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} must be a number, not {_shown(value)}")
    return float(value)


def _boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, not {_shown(value)}")
    return value


def _strings(name: str, value: Any) -> list[str]:
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(item, str) and item for item in strings):
        raise ValueError(f"{name} must be a string that is not empty, or a list of such, not {_shown(value)}")
    return strings


def _token_ids(name: str, value: Any) -> list[int]:
    if not isinstance(value, list):
        raise ValueError(f"{name} must be a list of token ids, not {_shown(value)}")
    return [_integer(name, item) for item in value]


def _allowed(name: str, value: Any) -> list[int]:
    token_ids = _token_ids(name, value)
    if not token_ids:
        raise ValueError(f"{name} must name a token")
    return token_ids


def _biases(name: str, value: Any) -> dict[int, float]:
    """JSON's keys are strings."""
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be an object of token ids and numbers, not {_shown(value)}")
    if len(value) > MAX_BIASES:
        raise ValueError(f"{name} may name {MAX_BIASES} tokens at most, not {len(value)}")
    biases = {}
    for key, bias in value.items():
        if not str(key).isdecimal():
            raise ValueError(f"{name} must be an object of token ids and numbers, not {_shown(value)}")
        biases[int(key)] = _number(name, bias)
        if abs(biases[int(key)]) > 100:
            raise ValueError(f"{name} must be between -100 and 100, not {_shown(bias)}")
    return biases


def _seed(name: str, value: Any) -> int:
    seed = _integer(name, value)
    if not -(1 << 63) <= seed < 1 << 64:
        raise ValueError(f"{name} must fit in 64 bits, not {seed}")
    return seed % (1 << 64)


def _logprobs(name: str, value: Any) -> int:
    count = _integer(name, value)
    if count > MAX_LOGPROBS:
        raise ValueError(f"{name} must be at most {MAX_LOGPROBS}, not {count}")
    return count


def _samples(name: str, value: Any) -> int:
    count = _integer(name, value)
    if count > MAX_SAMPLES:
        raise ValueError(f"{name} must be at most {MAX_SAMPLES}, not {_shown(value)}")
    return count


def _top_k(name: str, value: Any) -> int:
    return min(_integer(name, value), _MAX_TOP_K)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


_INF = math.inf

_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "n": _samples,
    "max_tokens": _integer,
    "min_tokens": _integer,
    "temperature": _number,
    "top_p": _number,
    "top_k": _top_k,
    "min_p": _number,
    "seed": _seed,
    "stop": _strings,
    "stop_token_ids": _token_ids,
    "presence_penalty": _number,
    "frequency_penalty": _number,
    "repetition_penalty": _number,
    "logit_bias": _biases,
    "bad_words": _strings,
    "allowed_token_ids": _allowed,
    "ignore_eos": _boolean,
    "logprobs": _logprobs,
    "prompt_logprobs": _logprobs,
}

PARAMETERS = frozenset(_CHECKS) | frozenset(_ALIASES) | frozenset(NOT_SUPPORTED) | {"top_logprobs"}
"""The fields of a row that are sampling parameters rather than data."""
