"""How many rows may fail before a run is given up."""

from __future__ import annotations

from dataclasses import dataclass

from esurge_cli.errors import RunFailed
from esurge_cli.totals import Totals

_ROWS_BEFORE_SHARE = 100


@dataclass(frozen=True, slots=True)
class MaxErrors:
    """More than `count` rows, or more than `share` of them once 100 are done."""

    count: int | None = None
    share: float | None = None

    @classmethod
    def parse(cls, text: str) -> MaxErrors:
        """`N` or `P%`. Raises ValueError."""
        number = text.removesuffix("%")
        try:
            if number != text:
                share = float(number) / 100
                if 0 <= share <= 1:
                    return cls(share=share)
            elif int(number) >= 0:
                return cls(count=int(number))
        except ValueError:
            pass
        raise ValueError("it must be a number of rows, or a share such as 5%")

    def check(self, totals: Totals) -> None:
        """Raises RunFailed where too many rows have failed."""
        failed, done = totals.num_failed, totals.num_done
        too_many = self.count is not None and failed > self.count
        too_large = self.share is not None and done >= _ROWS_BEFORE_SHARE and failed > self.share * done
        if too_many or too_large:
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(totals.errors.items()))
            raise RunFailed(f"{failed:,} of {done:,} rows have failed ({reasons}), more than --max-errors allows")
