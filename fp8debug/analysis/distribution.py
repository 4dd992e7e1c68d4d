"""How the magnitudes of one record are spread over octaves, before a recipe and after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fp8debug.analysis.parts import printable_text
from fp8debug.analysis.run import Run

Place = tuple[str, str, int]
"""Layer, tensor, step."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """The finite elements of one operand at one sampled step, all its records of that step together.

    An octave e holds the magnitudes in [2**e, 2**(e+1)). Counts are exact, of what the histogram holds.
    """

    layer: str
    tensor: str
    step: int
    recipe: str | None
    """Recipe of `after`; None: nothing but `before` is known."""
    fmt: str | None
    scale: float | None
    """Factor before the cast, of the record with the largest amax."""
    n_scales: int
    """Different ones, where there are several records."""
    current_scale: float | None
    """What current scaling would have."""
    n: int
    """Finite elements."""
    n_zero: int
    """Zeros before."""
    n_zero_after: int
    n_nonfinite: int
    n_overflow: int
    """Elements that round beyond the largest finite value of the format at this scale."""
    amin: float | None
    amax: float | None
    octaves: tuple[int, ...]
    """Exponents, rising without gaps."""
    before: tuple[int, ...]
    """Elements in each octave."""
    after: tuple[int, ...]
    """Elements in each octave once cast and scaled back; empty without a recipe."""
    approx: str | None
    """'bf16' when FP32 values were rounded before they were counted."""
    sql: str
    """One SELECT for `fp8debug sql` that gives octave, n_before and n_after."""


_WANTED = """
create or replace temp table distribution_places as
select (row_number() over ())::int as id, *
from (
    select distinct unnest($layers::varchar[]) as layer, unnest($tensors::varchar[]) as tensor,
        unnest($steps::bigint[]) as step, unnest($recipes::varchar[]) as recipe
)
"""
# A recipe counts where every record has its scale: sums over some of them would not be those of the tensor.
_RECORDS = """
create or replace temp table distribution_records as
with found as (
    select p.id, c.segment, c.rank, c.seq, c.recipe, c.fmt, c.scale
    from cast_records as c
    join distribution_places as p
        on (p.layer, p.tensor, p.step) = (c.layer, c.tensor, c.step) and coalesce(c.recipe, p.recipe) = p.recipe
    where not coalesce(c.alternate, false) and {condition}
),
complete as (
    select id, count(recipe) * 2 = count(*) and count(distinct fmt) = 1 as is_known
    from found
    group by id
)
select found.*
from found
join complete using (id)
where is_known = (recipe is not null)
"""
_COUNTS = """
select id, octave, sum(n_before)::bigint, sum(n_after)::bigint, sum(n_overflow)::bigint
from octaves_of('distribution_records')
group by id, octave
order by id, octave nulls first
"""
_FACTS = """
select
    p.id, p.layer, p.tensor, p.step, any_value(r.recipe), any_value(r.fmt),
    arg_max(r.scale, kernel_amax(t.amax, t.n_posinf, t.n_neginf)), count(distinct r.scale),
    current_scale(max(kernel_amax(t.amax, t.n_posinf, t.n_neginf)), any_value(r.fmt)),
    sum(coalesce(t.n_nan, 0) + coalesce(t.n_posinf, 0) + coalesce(t.n_neginf, 0))::bigint, min(t.amin), max(t.amax),
    max(t.approx)
from distribution_records as r
join distribution_places as p using (id)
join tensors as t using (segment, rank, seq)
group by p.id, p.layer, p.tensor, p.step
order by p.id
"""


def distributions(
    run: Run, wanted: Sequence[Place], recipes: str | Mapping[Place, str | None] | None
) -> tuple[Distribution, ...]:
    """How operands at sampled steps are spread over octaves, in three queries for any number of them.

    Args:
        run: an open run.
        wanted: operands and steps, each once in the answer.
        recipes: canonical text of the recipe of `after`: one for all, or one for each place. None, or a recipe of
            which not every record has its one scale (block recipes have none): `before` alone.

    Returns:
        In the order asked for; places of which no value was counted are left out.
    """
    places = list(dict.fromkeys(wanted))
    if not places:
        return ()
    of_place = recipes if isinstance(recipes, Mapping) else dict.fromkeys(places, recipes)
    con = run.prepare("octaves_of cast_records tensors kernel_amax current_scale is_judged_pass shards")
    layers, tensors, steps = (list(column) for column in zip(*places, strict=True))
    given = {"layers": layers, "tensors": tensors, "steps": steps}
    con.execute(_WANTED, {**given, "recipes": [of_place.get(place) or "" for place in places]})
    con.execute(_RECORDS.format(condition=counted_once(run, "c.")))
    counts: dict[int, list[tuple[Any, ...]]] = {}
    for number, *row in con.execute(_COUNTS).fetchall():
        counts.setdefault(number, []).append(tuple(row))
    found = {
        (layer, tensor, step): _distribution(run, (layer, tensor, step), facts, counts[number])
        for number, layer, tensor, step, *facts in con.execute(_FACTS).fetchall()
        if number in counts
    }
    return tuple(found[place] for place in places if place in found)


def sampled_steps(run: Run, layer: str, tensor: str) -> tuple[int, ...]:
    """Steps in which the values of an operand were counted, rising: passes that count alone."""
    rows = run.sql(
        """
        select distinct step
        from tensors
        semi join (select segment, rank, seq from stored.histograms where counted = 'high') using (segment, rank, seq)
        where sampled and layer = $layer and tensor = $tensor and is_judged_pass(pass)
        order by step
        """,
        layer=layer,
        tensor=tensor,
    ).fetchall()
    return tuple(step for (step,) in rows)


def counted_once(run: Run, prefix: str = "") -> str:
    """SQL condition on records, whose columns have `prefix`: passes that count, and no piece of a tensor twice."""
    key = f"({prefix}segment, {prefix}rank, {prefix}seq)"
    pieces = f" and {key} in (select (segment, rank, seq) from shards)" if run.has_groups else ""
    return f"is_judged_pass({prefix}pass){pieces}"


def _distribution(
    run: Run, place: Place, facts: Sequence[Any], counts: Sequence[tuple[int | None, int, int | None, int | None]]
) -> Distribution:
    recipe, fmt, scale, n_scales, current_scale, n_nonfinite, amin, amax, approx = facts
    before = {octave: n for octave, n, _, _ in counts}
    after = {octave: n or 0 for octave, _, n, _ in counts}
    held = [octave for octave in before if octave is not None]
    octaves = range(min(held), max(held) + 1) if held else range(0)
    return Distribution(
        *place,
        recipe=recipe,
        fmt=fmt,
        scale=scale,
        n_scales=n_scales,
        current_scale=current_scale,
        n=sum(before.values()),
        n_zero=before.get(None, 0),
        n_zero_after=after.get(None, 0),
        n_nonfinite=n_nonfinite,
        n_overflow=sum(n or 0 for _, _, _, n in counts),
        amin=amin,
        amax=amax,
        octaves=tuple(octaves),
        before=tuple(before.get(octave, 0) for octave in octaves),
        after=tuple(after.get(octave, 0) for octave in octaves) if recipe is not None else (),
        approx=approx,
        sql=_sql(run, place, recipe, fmt),
    )


def _sql(run: Run, place: Place, recipe: str | None, fmt: str | None) -> str:
    layer, tensor, step = place
    under = "recipe is null" if recipe is None else f"recipe = {printable_text(recipe)} and fmt = '{fmt}'"
    return (
        "select octave, sum(n_before)::bigint as n_before, sum(n_after)::bigint as n_after\nfrom octaves\n"
        f"where layer = {printable_text(layer)}\n  and tensor = {printable_text(tensor)} and step = {step}\n"
        f"  and {under}\n  and {counted_once(run)}\ngroup by octave\norder by octave nulls first"
    )
