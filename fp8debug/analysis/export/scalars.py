"""The numbers of a run that belong to a step: what the training reported, and how each operand fared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fp8debug.analysis.export.narrowing import Narrowing
from fp8debug.analysis.run import Run


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor of a layer; under a recipe, in a format, where the number depends on it."""

    layer: str
    tensor: str
    recipe: str | None = None
    fmt: str | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """What is known of one step: of the training (operand None), or of one operand, the worst of its records."""

    step: int
    unix_s: float | None
    """Wall-clock start of the step; None: not recorded."""
    operand: Operand | None
    values: Mapping[str, float]
    """By name of the metric; what is not known is left out."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """One number of one step, under a name that is the same in every run."""

    step: int
    unix_s: float | None
    name: str
    """`loss`, `amax/<layer>/<tensor>`, `underflow/<layer>/<tensor>/<recipe>`"""
    value: float


_READINGS = """
with times as (
    select step, min(started_unix_s) as unix_s, avg(loss) as loss, avg(grad_norm) as grad_norm, avg(lr) as lr
    from steps
    group by step
),
found as (
    select step, loss, grad_norm, lr from times where {of_training}
    union all by name
    select step, layer, tensor, amax from tensor_steps where {of_tensors}
    union all by name
    select step, layer, tensor, recipe, fmt, underflow, overflow, sqnr_db, scale_gap_bits
    from operand_steps
    where not alternate and {of_operands}
)
select step, unix_s, layer, tensor, recipe, fmt, loss, grad_norm, lr, amax, underflow, overflow, sqnr_db, scale_gap_bits
from found
left join (select step, unix_s from times) using (step)
order by step, layer nulls first, tensor, recipe nulls first, fmt
"""


def readings(run: Run, narrowing: Narrowing | None = None) -> Iterator[Reading]:
    """All of them, by rising step. The format that a recipe uses is kept, those recorded beside it are left out.

    Raises:
        UsageError: something is asked for that was not recorded.
    """
    wanted = narrowing or Narrowing()
    rows = run.sql(
        _READINGS.format(
            of_training=wanted.condition(run, ("step",)),
            of_tensors=wanted.condition(run, ("layer", "tensor", "step")),
            of_operands=wanted.condition(run, ("layer", "tensor", "step", "recipe")),
        )
    )
    names = rows.columns[6:]
    for step, unix_s, layer, tensor, recipe, fmt, *values in rows.iter_rows():
        known = {name: value for name, value in zip(names, values, strict=True) if value is not None}
        if known:
            yield Reading(step, unix_s, Operand(layer, tensor, recipe, fmt) if layer is not None else None, known)


def scalars_of(reading: Reading) -> Iterator[Scalar]:
    """Its numbers, each under its own name."""
    place = reading.operand
    words = () if place is None else (place.layer, place.tensor, *((place.recipe,) if place.recipe else ()))
    for metric, value in reading.values.items():
        yield Scalar(reading.step, reading.unix_s, "/".join((metric, *words)), value)


def step_times(run: Run) -> dict[int, float]:
    """Wall-clock start of each step that has one, seconds since 1970."""
    query = "select step, min(started_unix_s) from steps where started_unix_s is not null group by step"
    return dict(run.sql(query).fetchall())
