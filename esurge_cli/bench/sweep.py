"""Which engines a list of option sets needs: as few as can be, for each has to be loaded and compiled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace

from esurge_cli.options import EngineOptions

_OF_SCHEDULER = {
    "max_num_batched_tokens",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "scheduling_policy",
    "long_prefill_token_threshold",
    "async_scheduling",
}
"""What may differ between schedulers that one engine serves, one after the other."""


def by_engine(points: Sequence[EngineOptions]) -> Iterator[tuple[EngineOptions, list[EngineOptions]]]:
    """The options to load an engine with, and the points that it serves; its budget is the largest of theirs."""
    groups: dict[EngineOptions, list[EngineOptions]] = {}
    for point in points:
        groups.setdefault(_as_loaded(point), []).append(point)
    for engine, members in groups.items():
        budgets = [member.max_num_batched_tokens for member in members]
        largest = None if None in budgets else max(budget for budget in budgets if budget is not None)
        yield replace(engine, max_num_batched_tokens=largest), members


def swept_fields(points: Sequence[EngineOptions]) -> list[str]:
    """The names of the fields that differ."""
    names = [field.name for field in fields(EngineOptions)]
    return [name for name in names if len({getattr(point, name) for point in points}) > 1]


def _as_loaded(point: EngineOptions) -> EngineOptions:
    defaults = {field.name: field.default for field in fields(point) if field.name in _OF_SCHEDULER}
    return replace(point, **defaults)  # type: ignore[arg-type]
