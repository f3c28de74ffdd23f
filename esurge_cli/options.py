"""All flags: those of the engine, which commands share, of sampling, and of input and output."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from esurge_cli.flags import PATH, Flag, Kind
from esurge_cli.limits import MaxErrors
from esurge_cli.results.result import Status
from esurge_cli.sizes import parse_bytes, parse_count, parse_memory


def _real(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("it must be a number") from None


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("it must be a whole number") from None


def _object(text: str) -> dict[str, Any]:
    import orjson

    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"it must be JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError("it must be a JSON object")
    return value


def choice(*names: str) -> Kind:
    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(f"it must be one of {', '.join(names)}")
        return text

    return Kind("|".join(names), parse)


def _retried(text: str) -> frozenset[Status]:
    names = [name.strip() for name in text.split(",")]
    if not set(names) <= _RETRIED.keys():
        raise ValueError("it must be error, length, or error,length")
    return frozenset(_RETRIED[name] for name in names)


_RETRIED = {"error": Status.FAILED, "length": Status.CUT}

COUNT = Kind("N", parse_count)
TOKENS = Kind("TOKENS", parse_count)
REAL = Kind("X", _real)
INTEGER = Kind("N", _integer)
SIZE = Kind("SIZE", parse_memory)
RETRY = Kind("error|length", _retried)
BYTES = Kind("SIZE", parse_bytes)


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Of the engine; the fields are called as in RunnerOptions and SchedulerConfig."""

    model: Annotated[
        str | None,
        Flag("Hugging Face folder, .gguf file or Hub id.", names=("-m",), shown_default="SmolLM2-135M-Instruct"),
    ] = None
    revision: Annotated[str | None, Flag("Branch, tag or commit of the model on the Hub.")] = None
    tokenizer: Annotated[str | None, Flag("Folder or Hub id of another tokenizer than the model's own.")] = None
    dtype: Annotated[
        str,
        Flag(
            "Of the weights and the computation; auto is bfloat16, or float32 on a CPU. A CPU with AMX is faster in "
            "bfloat16.",
            choice("auto", "float32", "bfloat16", "float16"),
        ),
    ] = "auto"
    kv_cache_dtype: Annotated[
        str, Flag("Of keys and values; auto is the dtype.", choice("auto", "float32", "bfloat16", "float16"))
    ] = "auto"
    max_model_len: Annotated[
        int | None, Flag("Longest sequence, prompt and output together.", TOKENS, shown_default="the model's")
    ] = None
    max_num_seqs: Annotated[int | None, Flag("Most sequences that run at once.", COUNT, shown_default="128")] = None
    max_num_batched_tokens: Annotated[
        int | None,
        Flag("Most tokens computed in a step.", TOKENS, ("--max-batched-tokens",), shown_default="2048"),
    ] = None
    page_size: Annotated[int, Flag("Tokens in a page of the KV cache.", TOKENS)] = 16
    num_pages: Annotated[int | None, Flag("Pages of the KV cache, the null page counted.", COUNT)] = None
    kv_cache_memory: Annotated[
        int | float | None,
        Flag("Memory of the KV cache: 4GiB, 512MB, or a share of what is free such as 0.6.", SIZE),
    ] = None
    enable_prefix_caching: Annotated[bool, Flag("Reuse the pages of prompts that begin alike.")] = True
    enable_chunked_prefill: Annotated[bool, Flag("Divide prompts over several steps.")] = True
    scheduling_policy: Annotated[str, Flag("Which rows begin first.", choice("fcfs", "priority", "offline"))] = "fcfs"
    long_prefill_token_threshold: Annotated[
        int | None, Flag("Most tokens of one prompt computed in a step.", TOKENS, shown_default="no limit")
    ] = None
    async_scheduling: Annotated[bool, Flag("Schedule a step before the one before it is read.")] = False
    num_speculative_tokens: Annotated[
        int, Flag("Most tokens of a row that are guessed ahead from its own text, and verified in a step.", COUNT)
    ] = 0
    seed: Annotated[int, Flag("What rows without a seed of their own derive theirs from.", INTEGER)] = 0


@dataclass(frozen=True, slots=True)
class SamplingFlags:
    """Of sampling, for the rows that do not say otherwise; None is not given."""

    max_tokens: Annotated[int | None, Flag("Most tokens to generate.", TOKENS, shown_default="512")] = None
    min_tokens: Annotated[int | None, Flag("Tokens before which nothing but the length stops.", TOKENS)] = None
    temperature: Annotated[float | None, Flag("0 is greedy.", REAL, shown_default="1.0")] = None
    top_p: Annotated[float | None, Flag("Draw from the likeliest tokens that reach this share.", REAL)] = None
    top_k: Annotated[int | None, Flag("Draw from this many likeliest tokens.", INTEGER)] = None
    min_p: Annotated[float | None, Flag("Draw from tokens this likely beside the likeliest.", REAL)] = None
    presence_penalty: Annotated[float | None, Flag("Off the logits of tokens that were generated.", REAL)] = None
    frequency_penalty: Annotated[
        float | None, Flag("Off the logits of tokens for each time that they were generated.", REAL)
    ] = None
    repetition_penalty: Annotated[
        float | None, Flag("Divides the logits of tokens of the prompt and the output; above 1 against them.", REAL)
    ] = None
    logit_bias: Annotated[
        dict[str, Any] | None, Flag("Added to the logits of tokens, by their ids.", Kind("JSON", _object))
    ] = None
    bad_words: Annotated[list[str], Flag("Text that must not be generated. May be repeated.")] = field(
        default_factory=list
    )
    n: Annotated[int | None, Flag("Samples of each row.", COUNT)] = None
    stop: Annotated[list[str], Flag("Text that ends a row, and is cut off. May be repeated.")] = field(
        default_factory=list
    )
    ignore_eos: Annotated[bool, Flag("Go on past the model's own end of text.")] = False
    logprobs: Annotated[
        int | None, Flag("Report log-probabilities: of each token, and of the K likeliest.", Kind("K", parse_count))
    ] = None
    prompt_logprobs: Annotated[
        int | None, Flag("The same of the prompt's tokens; with --max-tokens 0 that is all.", Kind("K", parse_count))
    ] = None

    def given(self) -> dict[str, Any]:
        """The flags that are set, by their sampling names."""
        values = {flag.name: getattr(self, flag.name) for flag in fields(self)}
        return {
            name: value for name, value in values.items() if value is not None and value is not False and value != []
        }


@dataclass(frozen=True, slots=True)
class InputOptions:
    """Of what is read, and how."""

    prompt_field: Annotated[str | None, Flag("Field that holds the prompt.", shown_default="prompt")] = None
    messages_field: Annotated[str | None, Flag("Field that holds the messages.", shown_default="messages")] = None
    id_field: Annotated[str, Flag("Field that holds the row's id.")] = "id"
    prompt_template: Annotated[
        str | None,
        Flag("Jinja over the row's fields that makes the prompt: the template itself or @FILE.", Kind("TEXT|@FILE")),
    ] = None
    chat: Annotated[bool, Flag("Send each plain prompt as one user message.")] = False
    system_prompt: Annotated[
        str | None, Flag("System message of every chat that has none of its own; plain prompts become chats.")
    ] = None
    chat_template: Annotated[
        str | None, Flag("Jinja chat template to use instead of the model's own.", Kind("FILE"))
    ] = None
    chat_template_kwargs: Annotated[
        dict[str, Any],
        Flag("What the chat template gets by name; a row's own chat_template_kwargs win.", Kind("JSON", _object)),
    ] = field(default_factory=dict)
    on_too_long: Annotated[
        str,
        Flag(
            "What becomes of a prompt that leaves no room in the context; a shortened one leaves room for max_tokens, "
            "and keeps half the context at least.",
            choice("error", "truncate-left", "truncate-right", "skip"),
        ),
    ] = "error"
    input_format: Annotated[
        str,
        Flag(
            "What the input is; auto goes by each file's name, then by how it begins.",
            choice("auto", "jsonl", "openai", "text", "csv", "json", "parquet"),
        ),
    ] = "auto"
    dataset: Annotated[
        str | None, Flag("Read a dataset instead of files: a name of the Hub, or a folder.", Kind("NAME"))
    ] = None
    dataset_config: Annotated[str | None, Flag("Which configuration of the dataset.", Kind("NAME"))] = None
    split: Annotated[str, Flag("Which split of the dataset.", Kind("NAME"))] = "train"
    max_line_bytes: Annotated[
        int, Flag("A longer line (or record) becomes an error row and is not held.", BYTES, shown_default="16MiB")
    ] = 16 << 20
    skip: Annotated[int, Flag("Pass over this many rows first.", COUNT)] = 0
    sample: Annotated[int | None, Flag("Then draw this many rows at random (by --seed), once all are read.", COUNT)] = (
        None
    )
    limit: Annotated[int | None, Flag("Then take this many rows only.", COUNT)] = None

    @property
    def is_part(self) -> bool:
        """Whether only some of the input's rows are taken."""
        return bool(self.skip) or self.sample is not None or self.limit is not None

    def of_prompts(self) -> dict[str, Any]:
        """Those that a row's prompt depends on, by name, as JSON values."""
        names = ("prompt_field", "messages_field", "chat", "system_prompt", "on_too_long")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """Of what is written, and where."""

    output: Annotated[
        str | None,
        Flag(
            "File to write, compressed if it is named .gz, .zst, .bz2 or .xz; or a folder for shards.",
            Kind("FILE"),
            ("-o",),
            shown_default="standard output",
        ),
    ] = None
    output_format: Annotated[
        str,
        Flag(
            "auto goes by the name, and is openai for such input.", choice("auto", "jsonl", "openai", "parquet", "text")
        ),
    ] = "auto"
    overwrite: Annotated[bool, Flag("Replace the output if it exists.")] = False
    resume: Annotated[bool, Flag("Go on with the output of a run that was stopped, or begin it.")] = False
    retry: Annotated[
        frozenset[Status] | None, Flag("With --resume: make rows again that ended so: error, length, or both.", RETRY)
    ] = None
    shard_rows: Annotated[
        int | None, Flag("Write a folder of files of this many rows each.", COUNT, shown_default="100000 for a folder")
    ] = None
    max_errors: Annotated[
        MaxErrors | None,
        Flag("Give up when more rows than this have failed, or this share of them.", Kind("N|P%", MaxErrors.parse)),
    ] = None
    unordered: Annotated[bool, Flag("Leave rows in the order in which they finish.")] = False
    return_token_ids: Annotated[bool, Flag("Add token_ids.")] = False
    include_prompt: Annotated[bool, Flag("Add the prompt, as the row has it.")] = False
    keep_fields: Annotated[
        list[str],
        Flag("Copy these fields of the row, with commas, or all; input_ is put before names that the output has."),
    ] = field(default_factory=list)
    summary: Annotated[Path | None, Flag("File for the run's totals as JSON; --dry-run reads it.", PATH)] = None
    dry_run: Annotated[
        bool,
        Flag(
            "Read and tokenize everything, and report what the job would be: load no weights, generate nothing. The "
            "time is estimated from what --summary names, of an earlier run or of esurge bench --json.",
        ),
    ] = False
    progress: Annotated[str, Flag("How progress is shown on stderr.", choice("auto", "rich", "plain", "none"))] = "auto"

    def of_lines(self) -> dict[str, Any]:
        """Those that a row's lines depend on, by name, as JSON values."""
        return {name: getattr(self, name) for name in ("return_token_ids", "include_prompt", "keep_fields")}
