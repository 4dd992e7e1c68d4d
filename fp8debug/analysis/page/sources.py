"""Where the values of each metric come from: a view and an expression, of which both the page and its SQL are made."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fp8debug.analysis.page.records import Floats, Plane
from fp8debug.analysis.parts import quote_text

LARGEST, SMALLEST, CLIPPING_FIRST = "largest", "smallest", "clipping_first"


@dataclass(frozen=True, slots=True)
class Source:
    """What a metric is called in a view that has one row a layer, operand and step."""

    metric: str
    view: str
    value: str
    """SQL expression; where it is NULL nothing is known."""
    worst: str = LARGEST


# Current scaling holds whatever there is.
_LIMIT = "if(recipe = 'current' or scale_gap_bits is null, null, fmt_max(fmt) / scale)"
SOURCES = (
    Source("underflow", "operand_steps", "underflow"),
    Source("overflow", "operand_steps", "overflow"),
    Source("sqnr_db", "operand_steps", "if(exact, 'inf'::double, sqnr_db)", SMALLEST),
    Source("sqnr_low_db", "operand_steps", "if(exact, 'inf'::double, sqnr_low_db)", SMALLEST),
    Source("scale_gap_bits", "operand_steps", "scale_gap_bits", CLIPPING_FIRST),
    Source("largest_held", "operand_steps", _LIMIT, SMALLEST),
    Source("amax", "tensor_steps", "amax"),
    Source("nonfinite", "tensor_steps", "n_nonfinite"),
    Source("gemm_sqnr_db", "gemm_steps", "if(exact, 'inf'::double, better_sqnr_db)", SMALLEST),
    Source("gemm_rel_l2", "gemm_steps", "rel_l2"),
    Source("underflow_given", "given_statistics", "underflow_all"),
    Source("overflow_given", "given_statistics", "overflow"),
    Source("mse_given", "given_statistics", "if(mse = 0 and mse_at_floor, null, mse)"),
)
BY_METRIC = {source.metric: source for source in SOURCES}
# For each view: its operand, its format, and which of its rows count.
OPERAND = {view: "gemm" if view == "gemm_steps" else "tensor" for view in {source.view for source in SOURCES}}
_BOTH_FORMATS = "fmt || ' x ' || other_fmt"
FMT = {view: _BOTH_FORMATS if view == "gemm_steps" else "fmt" for view in OPERAND}
COUNTS = {view: "not columnwise" if view == "given_statistics" else "not alternate" for view in OPERAND}


def worst_sql(worst: str, value: str) -> str:
    """The aggregate that keeps the worst of several values."""
    if worst == CLIPPING_FIRST:
        return f"if(max({value}) > 0, max({value}), min({value}))"
    return f"{'min' if worst == SMALLEST else 'max'}({value})"


def worst_of(metric: str, values: Floats, first: npt.NDArray[np.intp]) -> Floats:
    """The worst of the columns from each of `first` to the next; values (n_layers, n_columns), NaN: nothing known."""
    worst = BY_METRIC[metric].worst
    largest = np.fmax.reduceat(values, first, axis=1)
    if worst == LARGEST:
        return largest
    smallest = np.fmin.reduceat(values, first, axis=1)
    return smallest if worst == SMALLEST else np.where(largest > 0, largest, smallest)


def plane_sql(plane: Plane, span: int) -> str:
    """One SELECT with a row a layer and column that gives what `plane` shows: layer, step (its first), value."""
    return sql_of(BY_METRIC[plane.metric], plane.operand, plane.recipe, plane.fmt, span)


def sql_of(source: Source, operand: str, recipe: str | None, fmt: str | None, span: int) -> str:
    """As `plane_sql`, by what makes a plane."""
    value, by = source.value, ""
    if span > 1:
        value, by = worst_sql(source.worst, value), f"group by layer, step // {span}\n"
    conditions = [f"{OPERAND[source.view]} = {quote_text(operand)}"]
    if source.view != "tensor_steps":
        conditions += [_equals("recipe", recipe), _equals(FMT[source.view], fmt), COUNTS[source.view]]
    step = "min(step) as step" if span > 1 else "step"
    return (
        f"select layer, {step}, {value} as value\nfrom {source.view}\nwhere {' and '.join(conditions)}\n{by}"
        "order by layer, step"
    )


def _equals(column: str, text: str | None) -> str:
    return f"{column} is null" if text is None else f"{column} = {quote_text(text)}"
