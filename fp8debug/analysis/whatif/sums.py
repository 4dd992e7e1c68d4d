"""Error sums of every selected record under every per-tensor recipe, in the temporary table `whatif_sums`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from fp8debug.analysis.run import Run
from fp8debug.analysis.whatif.scales import ScaleRow, is_rounding
from fp8debug.metrics import ErrorSums, RankedHistogram
from fp8debug.recipes import Recipe, TensorRecipe

SUMS = tuple(field.name for field in fields(ErrorSums))

_BATCH_RECORDS = 1_000
_TYPES = {"record": "int", "recipe": "varchar", "fmt": "varchar", "scale": "float", "n_rolls": "bigint"} | {
    name: "double" if "sum_" in name else "bigint" for name in SUMS
}
_TABLE = f"create or replace temp table whatif_sums ({', '.join(f'{name} {kind}' for name, kind in _TYPES.items())})"
_SCALED = f"""
create or replace temp table whatif_scaled (id int, {", ".join(f"{name} {_TYPES[name]}" for name in SUMS)})
"""
_SCALES = """
create or replace temp table whatif_scales as
with given as (
    select
        unnest($records::int[]) as record, unnest($recipes::varchar[]) as recipe, unnest($fmts::varchar[]) as fmt,
        unnest($scales::float[]) as scale, unnest($n_rolls::bigint[]) as n_rolls
)
select (row_number() over ())::int as id, given.*, segment, rank, seq
from given
join whatif_records using (record)
"""
_ASKED = "select id, segment, rank, seq, fmt, scale from whatif_scales"
_INSERT = f"""
insert into whatif_sums
select record, recipe, fmt, scale, n_rolls, {", ".join(f"s.{name}" for name in SUMS)}
from whatif_scaled as s
join whatif_scales using (id)
"""
_BINS = """
select record, value, count
from stored.histograms
join whatif_records using (segment, rank, seq)
where counted = 'high' and record between $first and $last
order by record
"""


def create_sums(run: Run, recipes: Sequence[Recipe], scales: Iterable[ScaleRow], n_records: int) -> dict[str, int]:
    """Fill `whatif_sums`: in SQL where a scale says everything, else value by value in numpy.

    Returns:
        By recipe, the number of records whose scale is unknown, where there are any.
    """
    run.prepare("").execute(_TABLE)
    rows = list(scales)
    _insert_scaled(run, [row for row in rows if row.scale is not None])
    rounding = [recipe for recipe in recipes if isinstance(recipe, TensorRecipe) and is_rounding(recipe)]
    if rounding:
        _insert_rounded(run, rounding, n_records)
    return dict(Counter(row.recipe for row in rows if row.scale is None))


def _insert_scaled(run: Run, rows: Sequence[ScaleRow]) -> None:
    if not rows:
        return
    records, recipes, fmts, scales, n_rolls = (list(column) for column in zip(*rows, strict=True))
    con = run.prepare("")
    given = {"records": records, "recipes": recipes, "fmts": fmts, "scales": scales, "n_rolls": n_rolls}
    con.execute(_SCALES, given)
    con.execute(_SCALED)
    run.reduce("error_sums", _ASKED, into="whatif_scaled")
    con.execute(_INSERT)


def _insert_rounded(run: Run, recipes: Sequence[TensorRecipe], n_records: int) -> None:
    seen = run.sql("select tensor, amax, amin from whatif_records order by record").fetchall()
    rows: list[tuple[object, ...]] = []
    for record, histogram in _histograms(run, n_records):
        tensor, amax, amin = seen[record]
        for recipe in recipes:
            fmt = recipe.formats_for(tensor)[0][0]
            sums = histogram.sums_of(*recipe.round(histogram.values, amax or 0.0, amin or 0.0, fmt))
            scale = float(recipe.scale(amax or 0.0, fmt))
            rows.append((record, recipe.text, fmt.name, scale, None, *astuple(sums)))
    if rows:
        columns = ", ".join(f"unnest(${name}::{kind}[])" for name, kind in _TYPES.items())
        given = {name: list(column) for name, column in zip(_TYPES, zip(*rows, strict=True), strict=True)}
        run.prepare("").execute(f"insert into whatif_sums select {columns}", given)


def _histograms(run: Run, n_records: int) -> Iterator[tuple[int, RankedHistogram]]:
    """(record, histogram), a bounded number of them in memory at a time."""
    for first in range(0, n_records, _BATCH_RECORDS):
        columns = run.sql(_BINS, first=first, last=first + _BATCH_RECORDS - 1).fetchnumpy()
        record, value, count = (_plain(columns[name]) for name in ("record", "value", "count"))
        starts = np.flatnonzero(np.diff(record, prepend=-1))
        for start, stop in zip(starts, [*starts[1:], len(record)], strict=True):
            yield int(record[start]), RankedHistogram(value[start:stop], count[start:stop])


def _plain(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A column without NULLs, as an array that is none of numpy's masked ones."""
    return np.ascontiguousarray(np.ma.getdata(column))
