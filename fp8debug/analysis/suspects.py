"""Candidates for BF16 and the watch list as records: one entry an operand, whatever the number of recipes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fp8debug.analysis.run import Run
from fp8debug.gemms import gemms_reading


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the rule says of an operand under one recipe; numbers are medians over the steps that hit."""

    level: str
    """candidate | watch"""
    recipe: str
    fmt: str
    source: str
    criteria: tuple[str, ...]
    first_step: int
    last_step: int
    n_hit_steps: int
    n_observed_steps: int
    n_gap_hit_steps: int
    n_gap_steps: int
    db_lost: float | None
    worst_db_lost: float | None
    healthy_sqnr_db: float
    sqnr_db: float | None
    worst_sqnr_db: float | None
    sqnr_low_db: float | None
    worst_sqnr_low_db: float | None
    gain: float | None
    worst_gain: float | None
    underflow: float | None
    worst_underflow: float | None
    underflow_low: float | None
    overflow: float | None
    worst_overflow: float | None
    scale_gap_bits: float | None
    worst_scale_gap_bits: float | None
    scale_is_frozen: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Point:
    """The worst value of a metric over the steps from `first_step` to `last_step`."""

    first_step: int
    last_step: int
    value: float


@dataclass(frozen=True, slots=True)
class Series:
    """How the metric that hurts went over the judged steps."""

    metric: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Suspect:
    """An operand that is a candidate, or on the watch list."""

    layer: str
    tensor: str
    gemms: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    """One a recipe, worst first."""
    series: Series | None = None
    """Under the recipe of the first verdict."""
    fine_under: tuple[str, ...] = ()
    """Recipes under which it was judged and is neither a candidate nor on the watch list."""

    @property
    def worst(self) -> Verdict:
        """The verdict that ranks the operand."""
        return self.verdicts[0]


@dataclass(frozen=True, slots=True)
class IsolatedHit:
    """Operands that hit in one step and too seldom to be candidates."""

    step: int
    recipe: str
    n_operands: int
    db_lost: float | None
    message: str


_COLUMNS = [name for name in Verdict.__slots__ if name != "level"]

_SUSPECTS = f"""
select layer, tensor, 'candidate' as level, {", ".join(_COLUMNS)} from candidates
union all
select layer, tensor, 'watch' as level, {", ".join(_COLUMNS)} from watch
"""

# Nearly every healthy run has none: asking that first is cheaper than looking through all the evidence.
_ANY_ISOLATED = "select count(*) from operands where level = 'hit' and not is_persistent"
_ISOLATED = "select step, recipe, n_operands, db_lost, message from isolated_hits order by step, recipe"


def suspects(run: Run) -> tuple[tuple[Suspect, ...], tuple[Suspect, ...]]:
    """Candidates and watch list, each worst first.

    An operand that is a candidate under any recipe is only there; what other recipes say of it is in its verdicts.
    """
    by_operand: dict[tuple[str, str], list[Verdict]] = {}
    for layer, tensor, level, *cells in run.sql(_SUSPECTS).fetchall():
        values = dict(zip(_COLUMNS, cells, strict=True))
        values["criteria"] = tuple(values["criteria"])
        by_operand.setdefault((layer, tensor), []).append(Verdict(level=level, **values))
    found = [
        Suspect(layer, tensor, gemms_reading(tensor), tuple(sorted(verdicts, key=_badness)))
        for (layer, tensor), verdicts in by_operand.items()
    ]
    found.sort(key=lambda suspect: (_badness(suspect.worst), suspect.layer, suspect.tensor))
    candidates = tuple(suspect for suspect in found if suspect.worst.level == "candidate")
    return candidates, tuple(suspect for suspect in found if suspect.worst.level == "watch")


def isolated_hits(run: Run) -> tuple[IsolatedHit, ...]:
    """Steps with isolated hits, in order."""
    if not run.sql(_ANY_ISOLATED).fetchall()[0][0]:
        return ()
    return tuple(IsolatedHit(*row) for row in run.sql(_ISOLATED).fetchall())


def _badness(verdict: Verdict) -> tuple[bool, float, float, str]:
    """Sort key: candidates first, then by dB lost to a hundredth, what has no number last."""
    return (
        verdict.level != "candidate", -_or_less(verdict.db_lost), -_or_less(verdict.worst_db_lost), verdict.recipe
    )  # fmt: skip


def _or_less(number: float | None) -> float:
    return round(number, 2) if number is not None and math.isfinite(number) else -1.0
