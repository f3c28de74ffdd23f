"""A run's end, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from esurge_cli.errors import RunFailed
from esurge_cli.results.result import Status
from esurge_cli.sizes import show_time
from esurge_cli.totals import Totals


@dataclass(frozen=True, slots=True)
class Summary:
    """Totals, seconds (of loading, compiling and generating), and the settings in force, by their flags' names.

    `resume` is the command that goes on, where the run has stopped before its end.
    """

    totals: Totals
    load_seconds: float
    compile_seconds: float
    generate_seconds: float
    settings: Mapping[str, Any]
    resume: str | None = None

    @property
    def tokens_per_second(self) -> float:
        return self.totals.num_output_tokens / self.generate_seconds if self.generate_seconds else 0.0

    def lines(self) -> list[str]:
        totals = self.totals
        return [
            f"{totals.num_done:,} rows in {show_time(self.generate_seconds)}: {', '.join(self._rows())}",
            f"{totals.num_prompt_tokens:,} prompt tokens ({totals.num_cached_tokens:,} cached), "
            f"{totals.num_output_tokens:,} output tokens, {self.tokens_per_second:,.0f} tokens/s "
            f"(load {self.load_seconds:.1f} s, compile {self.compile_seconds:.1f} s)",
        ]

    def values(self) -> dict[str, Any]:
        """For JSON."""
        totals = self.totals
        return {
            "rows": {
                "ok": totals.num_good,
                "failed": totals.num_failed,
                "skipped": totals.num_skipped,
                "kept": totals.kept.total(),
                "kept_failed": totals.kept[Status.FAILED],
                "cut_by_length": totals.num_cut,
                "failed_by_reason": {str(reason): count for reason, count in sorted(totals.errors.items())},
            },
            "tokens": {
                "prompt": totals.num_prompt_tokens,
                "cached": totals.num_cached_tokens,
                "output": totals.num_output_tokens,
            },
            "seconds": {
                "load": round(self.load_seconds, 3),
                "compile": round(self.compile_seconds, 3),
                "generate": round(self.generate_seconds, 3),
            },
            "output_tokens_per_second": round(self.tokens_per_second, 2),
            "settings": dict(self.settings),
            "resume": self.resume,
        }

    def write(self, path: Path) -> None:
        """As JSON. Raises RunFailed where it cannot."""
        try:
            path.write_bytes(orjson.dumps(self.values(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
        except OSError as error:
            raise RunFailed(f"{path} cannot be written: {error.strerror}") from error

    def _rows(self) -> list[str]:
        totals = self.totals
        cut = f" ({totals.num_cut:,} cut by length)" if totals.num_cut else ""
        parts = [f"{totals.num_good:,} good{cut}"]
        if totals.num_failed:
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(totals.errors.items()))
            parts.append(f"{totals.num_failed:,} failed ({reasons})")
        if totals.num_skipped:
            parts.append(f"{totals.num_skipped:,} skipped as too long")
        if totals.kept:
            failed = f" ({totals.kept[Status.FAILED]:,} failed)" if totals.kept[Status.FAILED] else ""
            parts.append(f"{totals.kept.total():,} kept from before{failed}")
        return parts
