"""What was measured while the tensors were at hand: operands in blocks, and the results of GEMMs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fp8debug.analysis.remedies.measured import Count, Measured
from fp8debug.analysis.run import Run
from fp8debug.config import DETAILS


@dataclass(frozen=True, slots=True)
class GemmResult:
    """The result of a GEMM under one recipe."""

    count: Count
    """Steps in which it is below what rounding both operands can give."""
    product_sqnr_db: float | None
    """Median over the records that are, or over all where none is."""
    floor_db: float
    """That limit."""


# In blocks nothing tells small values from large ones. What one scale for the tensor keeps of the small ones in the
# same format, blocks keep too; where that is not known, or is little, underflow counts.
_BLOCKS = """
with by_tensor as (
    select segment, rank, seq, fmt, bool_or(is_underflow_hit(underflow, sqnr_low_db, channel_db, fmt)) as loses_small
    from sampled_evidence
    where recipe = 'current' and layer in (select unnest($layers::varchar[]))
    group by segment, rank, seq, fmt
),
judged as (
    select
        b.*,
        is_sqnr_hit(sqnr_db, fmt) as hit_sqnr, is_gain_hit(gain, fmt) as hit_gain,
        coalesce(underflow > getvariable('underflow') and coalesce(loses_small, true), false) as hit_underflow,
        hit_sqnr or hit_gain or hit_underflow as is_hit
    from block_errors as b
    left join by_tensor using (segment, rank, seq, fmt)
    where not alternate and is_judged_pass(pass) and per_fmt(fmt, 1, 1) is not null
      and n_nonzero >= getvariable('min_nonzero')
      and layer in (select unnest($layers::varchar[])) and recipe in (select unnest($recipes::varchar[]))
),
marked as (
    select *, bool_or(is_hit) over (partition by recipe, layer, tensor, gemm) as is_any_hit from judged
)
select
    recipe, layer, tensor, gemm, count(distinct step) filter (is_hit), count(distinct step),
    median(sqnr_db) filter (is_hit = is_any_hit), null, median(underflow) filter (is_hit = is_any_hit),
    median(overflow) filter (is_hit = is_any_hit), null, median(gain) filter (is_hit = is_any_hit),
    criteria_list(false, bool_or(hit_underflow), false, bool_or(hit_gain), bool_or(hit_sqnr))
from marked
group by recipe, layer, tensor, gemm
"""
_GEMMS = """
with judged as (
    select
        g.layer, g.gemm, g.recipe, g.step, g.accumulation, g.product_sqnr_db,
        result_floor_db(g.fmt, g.other_fmt) as floor_db,
        is_result_hit(g.product_sqnr_db, g.sqnr_db, g.fmt, g.other_fmt) as is_hit
    from gemm_errors as g
    left join judged_scales as s using (segment, rank, seq, recipe, fmt)
    where not g.alternate and is_judged_pass(g.pass)
      and not coalesce(s.source = 'simulated' and s.n_rolls < getvariable('warmup_rolls'), false)
      and g.layer in (select unnest($layers::varchar[])) and g.recipe in (select unnest($recipes::varchar[]))
),
marked as (
    select *, bool_or(is_hit) over (partition by recipe, layer, gemm, accumulation) as is_any_hit
    from judged
    where floor_db is not null
)
select
    recipe, layer, gemm, count(distinct step) filter (is_hit), count(distinct step),
    median(product_sqnr_db) filter (is_hit = is_any_hit), max(floor_db)
from marked
group by recipe, layer, gemm, accumulation
order by accumulation = 'exact'
"""


def blocks(run: Run, layers: Sequence[str], recipes: Sequence[str]) -> dict[tuple[str, str, str, str], Measured]:
    """(recipe, layer, tensor, gemm) -> what the operand is in blocks, the way that GEMM reads it."""
    rows = run.sql(_BLOCKS, layers=list(layers), recipes=list(recipes)).fetchall()
    return {(recipe, layer, tensor, gemm): Measured.of(cells) for recipe, layer, tensor, gemm, *cells in rows}


def gemms(run: Run, layers: Sequence[str], recipes: Sequence[str]) -> dict[tuple[str, str, str], GemmResult]:
    """(recipe, layer, gemm) -> its result, accumulated exactly where that was measured."""
    rows = run.sql(_GEMMS, layers=list(layers), recipes=list(recipes)).fetchall()
    return {
        (recipe, layer, gemm): GemmResult(Count(n_hit, n_observed), product_sqnr_db, floor_db)
        for recipe, layer, gemm, n_hit, n_observed, product_sqnr_db, floor_db in rows
    }


def recorded_recipes(run: Run, table: str) -> tuple[str, ...]:
    """Recipes that `blocks` or `gemms` has rows of."""
    rows = run.sql(f"select distinct recipe from stored.{table} where not alternate order by recipe").fetchall()
    return tuple(recipe for (recipe,) in rows)


def attach_command(run: Run, recipe: str) -> str:
    """What records operands in blocks, and results, under a recipe; what is recorded by default is not asked for."""
    details = run.manifest.options.get("detail", DETAILS)
    missing = [detail for detail in ("blocks", "gemms") if detail not in details]
    words = f" --detail {','.join([*details, *missing])}" if missing else ""
    return f"`fp8debug attach{words} --recipe {recipe} ...`"
