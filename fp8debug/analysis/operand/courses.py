"""How an operand went over the steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fp8debug.analysis.operand.records import Course
from fp8debug.analysis.run import Run

METRICS = ("scale_gap_bits", "sqnr_db", "sqnr_low_db", "underflow", "overflow", "gain")
_OPERAND = "layer = $layer and tensor = $tensor"
_MAGNITUDES = f"select step, amax from tensor_steps where {_OPERAND} order by step"
_PER_TENSOR = f"""
select recipe, fmt, step, {", ".join(METRICS)}
from operand_steps
where {_OPERAND} and not alternate
order by recipe, fmt, step
"""
_PER_BLOCK = f"""
select
    recipe, fmt, step, null, min(sqnr_db), null, max(underflow), max(overflow), arg_max(gain, abs(gain - 1))
from block_errors
where {_OPERAND} and not alternate and is_judged_pass(pass)
group by recipe, fmt, step
order by recipe, fmt, step
"""
_STARTS = f"""
select recipe, fmt, max(step) + 1
from scale_gaps
where {_OPERAND} and source = 'simulated' and n_rolls < getvariable('warmup_rolls') and is_judged_pass(pass)
group by recipe, fmt
"""


def courses(run: Run, layer: str, tensor: str) -> tuple[Course, ...]:
    """The largest magnitude, then what each recipe does; a step without a number is left out."""
    given = {"layer": layer, "tensor": tensor}
    starts = {(recipe, fmt): step for recipe, fmt, step in run.sql(_STARTS, **given).fetchall()}
    found = [_course("amax", None, None, run.sql(_MAGNITUDES, **given).fetchall())]
    for query in (_PER_TENSOR, _PER_BLOCK):
        by_recipe: dict[tuple[str, str], list[tuple[Any, ...]]] = {}
        for recipe, fmt, *row in run.sql(query, **given).fetchall():
            by_recipe.setdefault((recipe, fmt), []).append(tuple(row))
        for (recipe, fmt), rows in by_recipe.items():
            for number, metric in enumerate(METRICS, 1):
                found.append(_course(metric, recipe, fmt, ((row[0], row[number]) for row in rows), starts))
    return tuple(course for course in found if course.steps)


def _course(
    metric: str,
    recipe: str | None,
    fmt: str | None,
    rows: Iterable[Sequence[Any]],
    starts: Mapping[tuple[str | None, str | None], int] | None = None,
) -> Course:
    known = [(int(step), float(value)) for step, value in rows if value is not None and math.isfinite(value)]
    return Course(
        metric=metric,
        recipe=recipe,
        fmt=fmt,
        steps=tuple(step for step, _ in known),
        values=tuple(value for _, value in known),
        judged_from=(starts or {}).get((recipe, fmt)),
    )
