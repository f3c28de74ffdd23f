"""What the user asks of the engine, and what that means for one model on this machine."""

from __future__ import annotations

from dataclasses import dataclass

import jax

from runner.dtypes import DTYPES
from runner.errors import UserError
from runner.memory import CacheLayout, plan_cache
from runner.models.config import DecoderConfig
from runner.programs import bucket_of, token_buckets

_DEFAULT_MAX_NUM_SEQS = 128
_DEFAULT_MAX_NUM_BATCHED_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """None and "auto" leave the choice to `plan_engine`. `kv_cache_memory` is bytes, or a share of the free memory."""

    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    page_size: int = 16
    num_pages: int | None = None
    kv_cache_memory: int | float | None = None
    num_speculative_tokens: int = 0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """Every choice made: what a runner allocates and compiles. Making one allocates nothing."""

    dtype: str
    kv_cache_dtype: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    layout: CacheLayout
    num_speculative_tokens: int
    seed: int

    @property
    def token_buckets(self) -> list[int]:
        """The numbers of tokens for which a step is compiled ahead."""
        return token_buckets(self.max_num_batched_tokens)

    def num_sequences_of(self, bucket: int) -> int:
        """The number of sequences that a step of `bucket` tokens is padded to."""
        return min(bucket, bucket_of(self.max_num_seqs))

    @property
    def max_num_samples(self) -> int:
        """The most tokens that a step samples, those after drafts included, padded."""
        return bucket_of(self.max_num_seqs * (1 + self.num_speculative_tokens))

    def num_samples_of(self, bucket: int) -> int:
        """The number of samples that a step of `bucket` tokens is padded to."""
        return min(bucket, self.max_num_samples)


def plan_engine(config: DecoderConfig, options: RunnerOptions) -> EnginePlan:
    """Raises UserError for an option that this model or machine cannot honour."""
    dtype = _dtype("--dtype", options.dtype, default=_default_dtype())
    kv_cache_dtype = _dtype("--kv-cache-dtype", options.kv_cache_dtype, default=dtype)
    for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "page_size", "num_pages"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} must be at least 1, not {value}")
    max_model_len = options.max_model_len or config.max_position_embeddings
    if max_model_len > config.max_position_embeddings:
        raise UserError(
            f"--max-model-len {max_model_len} is beyond the {config.max_position_embeddings} positions of this model"
        )
    max_num_batched_tokens = options.max_num_batched_tokens or _DEFAULT_MAX_NUM_BATCHED_TOKENS
    layout = plan_cache(
        config,
        page_size=options.page_size,
        dtype=kv_cache_dtype,
        max_model_len=max_model_len,
        max_num_batched_tokens=max_num_batched_tokens,
        num_pages=options.num_pages,
        cache_bytes=options.kv_cache_memory,
    )
    max_num_seqs = options.max_num_seqs or _DEFAULT_MAX_NUM_SEQS
    return EnginePlan(
        dtype,
        kv_cache_dtype,
        max_model_len,
        max_num_seqs,
        max_num_batched_tokens,
        layout,
        options.num_speculative_tokens,
        options.seed,
    )


def _dtype(flag: str, name: str, default: str) -> str:
    if name == "auto":
        return default
    if name not in DTYPES:
        raise UserError(f"{flag} must be auto, {', '.join(DTYPES)}; not {name!r}")
    return name


def _default_dtype() -> str:
    """bfloat16 on an accelerator; float32 on a CPU, few of which have units for bfloat16: all give the same text."""
    return "float32" if jax.default_backend() == "cpu" else "bfloat16"
