"""`esurge inspect`: what a model is, and what it would take to run it here."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from esurge_cli.flags import with_flags
from esurge_cli.options import EngineOptions
from esurge_cli.sizes import show_bytes
from runner.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

    from runner.models.config import DecoderConfig
    from runner.options import EnginePlan
    from runner.weights.checkpoint import Checkpoint
    from scheduler import CacheGroupSpec

_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@with_flags
def inspect(
    model_name: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", show_default=False, help="Hugging Face folder, .gguf file or Hub id."),
    ] = None,
    *,
    engine: EngineOptions,
) -> None:
    """Show a model's architecture, its KV cache and what would be compiled, without loading its weights."""
    if model_name is not None:
        if engine.model is not None:
            raise UserError(f"the model is named twice: {model_name} and --model {engine.model}")
        engine = replace(engine, model=model_name)
    _show(engine)


def _show(options: EngineOptions) -> None:
    from esurge_cli.display import make_display, results_console
    from esurge_cli.engine import check_options, plan

    check_options(options)
    display = make_display("auto")
    try:
        checkpoint, config, engine_plan = plan(options, display)
    finally:
        display.close()
    console = results_console()
    console.print(checkpoint.name, style="bold", markup=False)
    console.print(_facts(checkpoint, config, engine_plan))
    console.print(_groups(engine_plan))


def _facts(checkpoint: Checkpoint, config: DecoderConfig, plan: EnginePlan) -> Table:
    from rich.table import Table

    layout = plan.layout
    num_weights = config.flops_per_token() // 2
    if not config.tie_word_embeddings:
        num_weights += config.vocab_size * config.hidden_size
    num_tokens = (layout.num_pages - 1) * layout.page_size // len(layout.groups.kv_cache_groups)
    num_longest = (layout.num_pages - 1) // layout.max_pages_per_sequence
    buckets = plan.token_buckets
    sample_sizes = {plan.num_samples_of(bucket) for bucket in buckets}
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    for name, value in (
        ("architecture", f"{config.model_type}, {config.num_layers} layers of {config.hidden_size}"),
        (
            "attention",
            f"{_attention_types(config)}; {config.num_heads} heads of {config.head_dim}, "
            f"{config.num_kv_heads} of keys and values",
        ),
        ("feed-forward", f"{config.intermediate_size:,}, {config.activation}"),
        ("vocabulary", f"{config.vocab_size:,}"),
        ("context", f"{plan.max_model_len:,} of {config.max_position_embeddings:,} tokens"),
        (
            "weights",
            f"{num_weights / 1e6:,.0f} million, {show_bytes(num_weights * _DTYPE_BYTES[plan.dtype])} in {plan.dtype}",
        ),
        ("KV cache", f"{show_bytes(layout.bytes_per_token)} a token in {plan.kv_cache_dtype}"),
        ("pages", f"{layout.num_pages:,} of {layout.page_size} tokens, {show_bytes(layout.num_bytes)}"),
        ("these hold", f"at least {num_tokens:,} tokens, or {num_longest:,} sequences of {plan.max_model_len:,}"),
        ("sequences", f"up to {plan.max_num_seqs} at once"),
        (
            "compiled",
            f"{len(buckets) + len(sample_sizes)} programs: steps of "
            f"{', '.join(map(str, buckets))} tokens; sampling of "
            f"{', '.join(map(str, sorted(sample_sizes)))}",
        ),
    ):
        table.add_row(name, value)
    return table


def _attention_types(config: DecoderConfig) -> str:
    """ "30 full", or "15 sliding (512), 3 full"."""
    counts: dict[str, int] = {}
    for layer in config.layers:
        name = "full" if layer.window is None else f"sliding ({layer.window:,})"
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _groups(plan: EnginePlan) -> Table:
    from rich import box
    from rich.table import Table

    table = Table("cache group", "keeps", "layers", "KiB a token", "pages of the longest", box=box.SIMPLE_HEAD)
    for column in table.columns[2:]:
        column.justify = "right"
    for number, group in enumerate(plan.layout.groups.kv_cache_groups):
        spec, names = group.kv_cache_spec, group.layer_names or []
        num_bytes = len(names) * spec.page_bytes / plan.layout.page_size
        longest = spec.max_pages(plan.max_model_len, plan.max_num_batched_tokens)
        table.add_row(str(number), _kept(group), str(len(names)), f"{num_bytes / 1024:.3g}", f"{longest:,}")
    return table


def _kept(group: CacheGroupSpec) -> str:
    from scheduler import ChunkedLocalAttentionSpec, SlidingWindowSpec
    from scheduler.cache.specs import RecurrentStateSpec

    match group.kv_cache_spec:
        case SlidingWindowSpec(sliding_window=window):
            return f"the last {window:,} tokens"
        case ChunkedLocalAttentionSpec(attention_chunk_size=chunk):
            return f"the chunk of {chunk:,} tokens"
        case RecurrentStateSpec():
            return "a state"
        case _:
            return "every token"
