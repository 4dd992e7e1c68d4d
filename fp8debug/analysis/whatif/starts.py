"""The start of replayed histories: left out for every recipe, so that all figures are of the same records."""

from __future__ import annotations

from dataclasses import dataclass

from fp8debug.analysis.run import Run

KEPT = "(segment, step, layer) not in (select (segment, step, layer) from whatif_starts)"
"""Condition on the columns of the record key."""

_COLD = "n_rolls < getvariable('warmup_rolls')"
_STARTS = f"""
create or replace temp table whatif_starts as
select distinct segment, step, layer
from whatif_sums
join whatif_records using (record)
where {_COLD}
"""
_COUNTS = f"""
select count(distinct record), count(distinct record) filter (not {KEPT})
from whatif_sums
join whatif_records using (record)
"""


@dataclass(frozen=True, slots=True)
class Starts:
    """What was left out."""

    n_records: int
    n_left_out: int
    recipes: tuple[str, ...]
    """Recipes that had to go, since no record is beyond the start of their history."""


def leave_out_starts(run: Run) -> Starts:
    """Make the temporary table `whatif_starts`: steps and layers in which some history is too young to be judged.

    The rules of the report draw the line at the same place. Where nothing would be left, the recipes with a history
    are taken out instead.
    """
    con = run.prepare("")
    con.execute(_STARTS)
    n_records, n_left_out = con.execute(_COUNTS).fetchall()[0]
    if n_left_out < n_records or not n_records:
        return Starts(n_records, n_left_out, ())
    young = con.execute(f"select distinct recipe from whatif_sums where {_COLD} order by recipe").fetchall()
    con.execute("delete from whatif_sums where n_rolls is not null")
    con.execute("truncate whatif_starts")
    return Starts(n_records, n_left_out, tuple(recipe for (recipe,) in young))
