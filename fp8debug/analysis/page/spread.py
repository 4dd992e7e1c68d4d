"""Of which operands and steps a page keeps the distribution."""

from __future__ import annotations

from collections.abc import Sequence

from fp8debug.analysis.distribution import Distribution, Place, distributions
from fp8debug.analysis.run import Run

MOST = 600

# Only steps whose values were counted; of an operand the first, the last, and the one that lost most.
_PLACES = """
with counted as (
    select distinct layer, tensor, step
    from tensors
    semi join (select distinct segment, rank, seq from stored.histograms) as h using (segment, rank, seq)
    where is_judged_pass(pass) and layer in (select unnest($layers::varchar[]))
),
lost as (
    select layer, tensor, step, recipe, max(db_lost) as db_lost
    from layer_records
    where not alternate and layer in (select unnest($layers::varchar[]))
    group by layer, tensor, step, recipe
),
worst as (
    select layer, tensor, max(db_lost) as db_lost, arg_max(recipe, db_lost) as recipe, arg_max(step, db_lost) as step
    from lost
    semi join counted using (layer, tensor, step)
    where db_lost > 0
    group by layer, tensor
)
select
    layer, tensor, min(c.step) as first_step, max(c.step) as last_step, any_value(w.step) as worst_step,
    any_value(w.recipe) as recipe, coalesce(any_value(w.db_lost), 0) as db_lost
from counted as c
left join worst as w using (layer, tensor)
group by layer, tensor
order by db_lost desc, layer, tensor
"""


def kept_distributions(
    run: Run, layers: Sequence[str], first: Sequence[tuple[str, str]], most: int = MOST
) -> tuple[tuple[Distribution, ...], tuple[str, ...]]:
    """First, worst and last counted step of each operand of `layers`, at most `most` in all, and a note if not all.

    Each under the recipe by which it loses most there; where it loses nothing, under the run's first delayed recipe,
    else its first.

    Args:
        run: an open run.
        layers: those shown.
        first: operands that come before the others, which follow by what they lose.
        most: distributions kept.
    """
    usual = _usual_recipe(run)
    rank = {operand: place for place, operand in reversed(list(enumerate(first)))}
    rows = run.sql(_PLACES, layers=list(layers)).fetchall()
    rows.sort(key=lambda row: rank.get((row[0], row[1]), len(rank)))
    wanted: dict[Place, str | None] = {}
    n_operands = 0
    for layer, tensor, first_step, last_step, worst_step, recipe, _ in rows:
        steps = dict.fromkeys(step for step in (first_step, worst_step, last_step) if step is not None)
        if len(wanted) + len(steps) > most:
            break
        n_operands += 1
        wanted |= {(layer, tensor, step): recipe or usual for step in sorted(steps)}
    note = (
        f"Distributions are kept of {n_operands:,} of {len(rows):,} operands: those with findings first, then those "
        "that lose most. `fp8debug show` has all."
    )
    return distributions(run, list(wanted), wanted), (note,) if n_operands < len(rows) else ()


def _usual_recipe(run: Run) -> str | None:
    recipes = run.manifest.recipes
    delayed = [recipe for recipe in recipes if recipe.partition(":")[0] == "delayed"]
    return next(iter([*delayed, *recipes]), None)
