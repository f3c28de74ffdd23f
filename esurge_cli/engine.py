"""From the engine's flags to a runner and its schedulers."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from esurge_cli.options import EngineOptions
from runner.errors import UserError
from runner.progress import Progress
from scheduler import Scheduler, SchedulerConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from runner import eSurgeRunner
    from runner.models.config import DecoderConfig
    from runner.options import EnginePlan, RunnerOptions
    from runner.weights.checkpoint import Checkpoint


@dataclass(slots=True)
class Engine:
    """A model that is ready to run: every step within the options' budget is compiled.

    It took `load_seconds` in all; beside the weights, compiling took `compile_seconds` of them.
    """

    checkpoint: Checkpoint
    tokenizer: PreTrainedTokenizerBase
    runner: eSurgeRunner
    load_seconds: float = 0.0
    compile_seconds: float = 0.0

    @property
    def stop_token_ids(self) -> list[int]:
        return sorted(self.checkpoint.stop_token_ids(self.tokenizer))

    def scheduler(self, options: EngineOptions) -> Scheduler:
        """A new one, with an empty cache; the runner serves one at a time."""
        return Scheduler.from_runner(
            self.runner,
            max_num_batched_tokens=options.max_num_batched_tokens or self.runner.max_num_batched_tokens,
            enable_prefix_caching=options.enable_prefix_caching,
            num_speculative_tokens=options.num_speculative_tokens,
            **_scheduler_options(options),
        )

    def identity(self, options: EngineOptions) -> dict[str, Any]:
        """What of the engine the text of a row depends on, by name, as JSON values."""
        plan = self.runner.plan
        return {
            "model": self.checkpoint.name,
            "revision": options.revision,
            "tokenizer": options.tokenizer,
            "dtype": plan.dtype,
            "kv_cache_dtype": plan.kv_cache_dtype,
            "max_model_len": self.runner.max_model_len,
        }

    def describe(self, options: EngineOptions) -> list[str]:
        """What was chosen, in a few lines for people."""
        runner = self.runner
        caching = "prefix caching" if options.enable_prefix_caching else "no prefix caching"
        return [
            f"{self.checkpoint.name}  {runner.plan.dtype}  context {runner.max_model_len:,}",
            f"{runner.max_num_seqs} sequences  {runner.max_num_batched_tokens:,} tokens a step  "
            f"{runner.num_pages:,} pages of {runner.page_size} tokens  {caching}",
        ]


def load_engine(options: EngineOptions, progress: Progress) -> Engine:
    """Raises UserError where the model cannot be found or run as the options ask."""
    check_options(options)
    start = time.monotonic()
    checkpoint = _open(options, progress)
    tokenizer = load_tokenizer(options, checkpoint, progress)
    from runner import eSurgeRunner

    runner = eSurgeRunner.from_checkpoint(checkpoint, runner_options(options), progress, warm_up=True)
    return Engine(checkpoint, tokenizer, runner, time.monotonic() - start, runner.compile_seconds)


def plan(options: EngineOptions, progress: Progress) -> tuple[Checkpoint, DecoderConfig, EnginePlan]:
    """What would be loaded, and how it would be run; nothing is loaded."""
    from runner.models.families import decoder_config
    from runner.options import plan_engine

    checkpoint = _open(options, progress)
    config = decoder_config(checkpoint.config)
    return checkpoint, config, plan_engine(config, runner_options(options))


def load_tokenizer(options: EngineOptions, checkpoint: Checkpoint, progress: Progress) -> PreTrainedTokenizerBase:
    """The checkpoint's own, unless the options name another. Raises UserError."""
    if options.tokenizer is None:
        return checkpoint.load_tokenizer()
    from runner.weights.checkpoint import open_checkpoint
    from runner.weights.folder import load_tokenizer
    from runner.weights.resolve import resolve_tokenizer

    path = resolve_tokenizer(options.tokenizer, progress)
    return load_tokenizer(path) if path.is_dir() else open_checkpoint(path).load_tokenizer()


def check_options(options: EngineOptions) -> None:
    """Raises UserError for what needs no model to be seen as wrong."""
    if options.async_scheduling and options.num_speculative_tokens:
        raise UserError("--async-scheduling and --num-speculative-tokens do not go together")
    budget = options.max_num_batched_tokens
    try:
        SchedulerConfig(
            max_num_seqs=1 if options.max_num_seqs is None else options.max_num_seqs,
            max_num_batched_tokens=1 if budget is None else budget,
            max_model_len=1 if options.max_model_len is None else options.max_model_len,
            **_scheduler_options(options),
        )
    except ValueError as error:
        raise UserError(str(error)) from error


def runner_options(options: EngineOptions) -> RunnerOptions:
    from runner.options import RunnerOptions

    return RunnerOptions(
        dtype=options.dtype,
        kv_cache_dtype=options.kv_cache_dtype,
        max_model_len=options.max_model_len,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        page_size=options.page_size,
        num_pages=options.num_pages,
        kv_cache_memory=options.kv_cache_memory,
        num_speculative_tokens=options.num_speculative_tokens,
        seed=options.seed,
    )


def _open(options: EngineOptions, progress: Progress) -> Checkpoint:
    from runner.weights.checkpoint import open_checkpoint

    return open_checkpoint(options.model, options.revision, progress)


def _scheduler_options(options: EngineOptions) -> dict[str, Any]:
    return {
        "policy": options.scheduling_policy,
        "long_prefill_token_threshold": options.long_prefill_token_threshold,
        "chunked_prefill_enabled": options.enable_chunked_prefill,
        "async_scheduling": options.async_scheduling,
    }
