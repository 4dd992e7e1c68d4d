"""What the candidate rule sees of an operand or a GEMM under one recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Operand = tuple[str, str]
"""(layer, tensor)"""


@dataclass(frozen=True, slots=True)
class Count:
    """In how many steps a criterion was met."""

    n_hit: int = 0
    n_observed: int = 0

    def fails(self, thresholds: Mapping[str, float]) -> bool:
        """Whether that is persistent, as the candidate rule has it; so few steps that it cannot tell count as well."""
        short = self.n_observed < thresholds["short_run_steps"]
        enough = thresholds["min_steps_short"] if short else thresholds["min_steps"]
        if 0 < self.n_observed < enough:
            return self.n_hit == self.n_observed
        return self.n_hit >= enough and self.n_hit >= thresholds["min_share"] * self.n_observed


@dataclass(frozen=True, slots=True)
class Measured:
    """An operand under one recipe; numbers are medians over the records that hit, or over all where none does."""

    sampled: Count
    sqnr_db: float | None = None
    sqnr_low_db: float | None = None
    underflow: float | None = None
    overflow: float | None = None
    scale_gap_bits: float | None = None
    gain: float | None = None
    criteria: tuple[str, ...] = ()
    """Criteria met in any step."""

    @classmethod
    def of(cls, cells: Sequence[Any]) -> Measured:
        """From the columns of a query: steps that hit and were observed, the numbers in order, the criteria."""
        n_hit, n_observed, sqnr_db, sqnr_low_db, underflow, overflow, scale_gap_bits, gain, criteria = cells
        count, met = Count(n_hit, n_observed), tuple(criteria)
        return cls(count, sqnr_db, sqnr_low_db, underflow, overflow, scale_gap_bits, gain, met)
