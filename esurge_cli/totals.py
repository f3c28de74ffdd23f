"""What a run has done so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from esurge_cli.results.result import Result, Status
from esurge_cli.rows.row import ErrorType
from scheduler import FinishReason


@dataclass(slots=True)
class Totals:
    """Rows that are done (good ones, those cut by length among them), failed by reason, or left out; tokens and steps.

    `kept` are rows that an earlier run has done, by how they ended; nothing else here counts them. The prompt's tokens
    are counted once for each sample.
    """

    num_good: int = 0
    num_cut: int = 0
    num_skipped: int = 0
    errors: Counter[ErrorType] = field(default_factory=Counter)
    kept: Counter[Status] = field(default_factory=Counter)
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_steps: int = 0

    @property
    def num_failed(self) -> int:
        return self.errors.total()

    @property
    def has_failed_rows(self) -> bool:
        """Whether any row of the output is an error."""
        return bool(self.num_failed or self.kept[Status.FAILED])

    @property
    def num_done(self) -> int:
        """Rows that are out of the way."""
        return self.num_good + self.num_failed + self.num_skipped

    def add(self, results: Sequence[Result]) -> bool:
        """Count a good row; whether any of its samples was cut by length."""
        is_cut = any(result.finish_reason is FinishReason.LENGTH for result in results)
        self.num_good += 1
        self.num_cut += is_cut
        self.num_prompt_tokens += sum(result.usage.prompt_tokens for result in results)
        self.num_cached_tokens += sum(result.usage.cached_tokens for result in results)
        return is_cut
