"""How much of a run could be judged, under which recipe: the ground that every verdict stands on."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fp8debug.analysis.run import Run
from fp8debug.analysis.suspects import Suspect


@dataclass(frozen=True, slots=True)
class Judged:
    """How much was judged under one recipe. An operand is one tensor of one layer."""

    recipe: str
    source: str
    """simulated | framework: whose scales these are"""
    n_operands: int
    n_steps: int
    """Sampled steps that were judged, of the operand with the most."""
    n_too_small: int
    """Operands left out because no record has enough non-zero values."""
    n_warming_up: int
    """Operands left out because every record falls into the start of a simulated history."""
    n_without_limits: int
    """Operands left out because the rules have no limits for their format."""
    median_sqnr_db: dict[str, float]
    """Element format -> median over operands of the median over records of their SQNR, dB."""
    n_candidates: int
    n_watch: int


@dataclass(frozen=True, slots=True)
class JudgedOperand:
    """One operand under one recipe."""

    recipe: str
    fmt: str
    layer: str
    tensor: str
    n_steps: int
    sqnr_db: float | None


_OPERANDS = """
select recipe, fmt, layer, tensor, count(distinct step), median(sqnr_db)
from sampled_evidence
where not alternate
group by recipe, fmt, layer, tensor
"""

_MEASURED = """
select
    recipe, layer, tensor, max(source),
    case
        when per_fmt(max(fmt), 1, 1) is null then 'without limits'
        when max(n_nonzero) < getvariable('min_nonzero') then 'too small'
        else 'warming up'
    end
from errors
where not alternate and source <> 'payload' and is_judged_pass(pass)
group by recipe, layer, tensor
order by recipe
"""


def judged_operands(run: Run) -> tuple[JudgedOperand, ...]:
    """Every operand with a judged record, once a recipe."""
    return tuple(JudgedOperand(*row) for row in run.sql(_OPERANDS).fetchall())


def judged(
    run: Run, operands: Sequence[JudgedOperand], candidates: Sequence[Suspect], watch: Sequence[Suspect]
) -> tuple[Judged, ...]:
    """What was judged and what was not, one entry a recipe."""
    done = {(operand.recipe, operand.layer, operand.tensor) for operand in operands}
    verdicts = [verdict for suspect in (*candidates, *watch) for verdict in suspect.verdicts]
    sources: dict[str, str] = {}
    left_out: list[tuple[str, str]] = []
    for recipe, layer, tensor, source, why in run.sql(_MEASURED).fetchall():
        sources[recipe] = source
        if (recipe, layer, tensor) not in done:
            left_out.append((recipe, why))
    return tuple(
        Judged(
            recipe,
            source,
            n_operands=sum(key[0] == recipe for key in done),
            n_steps=max((operand.n_steps for operand in operands if operand.recipe == recipe), default=0),
            n_too_small=left_out.count((recipe, "too small")),
            n_warming_up=left_out.count((recipe, "warming up")),
            n_without_limits=left_out.count((recipe, "without limits")),
            median_sqnr_db=_medians(operand for operand in operands if operand.recipe == recipe),
            n_candidates=sum(v.recipe == recipe and v.level == "candidate" for v in verdicts),
            n_watch=sum(v.recipe == recipe and v.level == "watch" for v in verdicts),
        )
        for recipe, source in sources.items()
    )


def _medians(operands: Iterable[JudgedOperand]) -> dict[str, float]:
    by_format: dict[str, list[float]] = {}
    for operand in operands:
        if operand.sqnr_db is not None:
            by_format.setdefault(operand.fmt, []).append(operand.sqnr_db)
    return {fmt: statistics.median(values) for fmt, values in sorted(by_format.items())}
