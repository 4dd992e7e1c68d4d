"""The values of all metrics over layers and columns of steps, one pass over each view."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fp8debug.analysis.page.limits import without_derivable
from fp8debug.analysis.page.records import Floats, Plane, Steps
from fp8debug.analysis.page.sources import COUNTS, FMT, OPERAND, SOURCES, Source, sql_of, worst_sql
from fp8debug.analysis.run import Run
from fp8debug.analysis.views import sql_files


@dataclass(frozen=True, slots=True, eq=False)
class Axes:
    """What planes extend over."""

    layers: tuple[str, ...]
    first_steps: Steps
    last_steps: Steps
    span: int


_RECORDED = "select distinct {} from tensors where is_judged_pass(pass) order by 1"
# A view is read once, into a table; each plane is then a few columns of it.
_TABLE = """
create or replace temp table page_{view} as
select
    l.place as layer_place, {operand} as operand, {key}, c.place as column_place,
    {values}
from {view} as v
join (select unnest($layers::varchar[]) as layer, unnest($layer_places::int[]) as place) as l using (layer)
join (select unnest($columns::bigint[]) as id, unnest($column_places::int[]) as place) as c
    on c.id = v.step // {span}
where {counts}
group by all
"""
_KEYS = "select distinct operand, recipe, fmt from page_{view} order by all"
_PLANE = """
select layer_place, column_place, {values}
from page_{view}
where operand = $operand and recipe is not distinct from $recipe and fmt is not distinct from $fmt
"""


def recorded_steps(run: Run) -> Steps:
    """Steps with a record that counts, rising."""
    return _array(run.sql(_RECORDED.format("step")).fetchnumpy()["step"]).astype(np.int64)


def recorded_layers(run: Run) -> tuple[str, ...]:
    """Layers with a record that counts, by name."""
    return tuple(layer for (layer,) in run.sql(_RECORDED.format("layer")).fetchall())


def planes(run: Run, axes: Axes) -> tuple[Plane, ...]:
    """All planes that have any value, by metric, operand and recipe."""
    views = dict.fromkeys(source.view for source in SOURCES if source.view in sql_files())
    found = [plane for view in views for plane in _planes_of(run, view, axes)]
    order = {source.metric: place for place, source in enumerate(SOURCES)}
    operands = ("x", "w", "dy", "fprop", "dgrad", "wgrad")
    found.sort(key=lambda p: (order[p.metric], *_place(p.operand, operands), p.recipe or "", p.fmt or ""))
    return without_derivable(found)


def _planes_of(run: Run, view: str, axes: Axes) -> Iterator[Plane]:
    sources = [source for source in SOURCES if source.view == view]
    _create_table(run, view, sources, axes)
    names = ", ".join(source.metric for source in sources)
    for operand, recipe, fmt in run.sql(_KEYS.format(view=view)).fetchall():
        table = run.sql(
            _PLANE.format(view=view, values=names), operand=operand, recipe=recipe, fmt=fmt
        ).fetchnumpy()  # fmt: skip
        places = _array(table["layer_place"]), _array(table["column_place"])
        for source in sources:
            values = _plane(places, table[source.metric], (len(axes.layers), axes.first_steps.size))
            if values is not None:
                sql = sql_of(source, operand, recipe, fmt, axes.span)
                yield Plane(source.metric, operand, recipe, fmt, values, sql)


def _create_table(run: Run, view: str, sources: Sequence[Source], axes: Axes) -> None:
    values = [f"{worst_sql(source.worst, source.value)}::float as {source.metric}" for source in sources]
    has_recipe = view != "tensor_steps"
    query = _TABLE.format(
        view=view,
        operand=OPERAND[view],
        key=f"recipe, {FMT[view]} as fmt" if has_recipe else "null::varchar as recipe, null::varchar as fmt",
        values=", ".join(values),
        span=axes.span,
        counts=COUNTS[view] if has_recipe else "true",
    )
    run.prepare(query).execute(
        query,
        {
            "layers": list(axes.layers),
            "layer_places": list(range(len(axes.layers))),
            "columns": (axes.first_steps // axes.span).tolist(),
            "column_places": list(range(axes.first_steps.size)),
        },
    )


def _plane(places: tuple[npt.NDArray[Any], ...], column: npt.NDArray[Any], shape: tuple[int, int]) -> Floats | None:
    """The values at their places; None where there is none."""
    values: Floats = np.full(shape, np.nan, dtype=np.float32)
    values[places] = np.ma.filled(column, np.nan)
    return None if np.isnan(values).all() else values


def _array(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Without the mask that columns have which may hold NULL."""
    return np.ma.getdata(column)


def _place(word: str, order: Sequence[str]) -> tuple[int, str]:
    return order.index(word) if word in order else len(order), word
