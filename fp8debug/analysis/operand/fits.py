"""What recipes and formats leave of an operand at one step."""

from __future__ import annotations

from typing import Any

from fp8debug.analysis.distribution import counted_once
from fp8debug.analysis.operand.records import Fit
from fp8debug.analysis.run import Run
from fp8debug.analysis.whatif.sums import SUMS
from fp8debug.formats import FORMATS
from fp8debug.recipes import BFLOAT16

WHATIF_FORMATS = ("E4M3", "E5M2")
"""Formats that are tried at the scale of current scaling where they were not recorded."""

_FORMATS = {**FORMATS, BFLOAT16.name: BFLOAT16}
_ROUNDED = 1 + 1e-6
"""So much above the largest value lies what is not above it: a FLOAT scale times a FLOAT is rounded twice."""
_ORDER = {"framework": 0, "simulated": 0, "blocks": 1, "whatif": 2}
_SUMS = ", ".join(SUMS)
_SUM_TYPES = ", ".join(f"{name} {'double' if 'sum_' in name else 'bigint'}" for name in SUMS)
_RECORDED = f"""
create or replace temp table operand_fits as
select
    e.recipe, e.fmt, coalesce(e.alternate, false) as alternate, e.source, segment, rank, seq, e.scale,
    kernel_amax(t.amax, t.n_posinf, t.n_neginf) as amax, {", ".join(f"e.{name}" for name in SUMS)}
from judged_errors as e
join tensors as t using (segment, rank, seq)
where t.layer = $layer and t.tensor = $tensor and t.step = $step and e.source <> 'payload' and {{condition}}
"""
_SCALES = """
create or replace temp table operand_scales as
select
    (row_number() over ())::int as id, f.fmt, t.segment, t.rank, t.seq,
    kernel_amax(t.amax, t.n_posinf, t.n_neginf) as seen_amax, current_scale(seen_amax, f.fmt) as scale
from tensors as t, (select unnest($formats::varchar[]) as fmt) as f
where t.layer = $layer and t.tensor = $tensor and t.step = $step and t.sampled and {condition}
  and f.fmt not in (select fmt from operand_fits where recipe = 'current')
"""
_WHATIF = f"""
insert into operand_fits
select 'current', fmt, false, 'whatif', segment, rank, seq, scale, seen_amax, {", ".join(f"s.{name}" for name in SUMS)}
from operand_scales
join operand_sums as s using (id)
"""
_ADDED = """
    ratio(sum(n_underflow), sum(n_nonzero)) as underflow, ratio(sum(n_overflow), sum(n)) as overflow,
    sqnr_db(sum(sum_x2), sum(sum_err2)) as sqnr_db, gain(sum(sum_xq), sum(sum_x2)) as gain,
    is_exact(sum(sum_err2)) as exact
"""
_FITS = f"""
with counted as (
    select
        f.recipe, f.fmt, f.alternate,
        ratio(
            coalesce(sum(h.count) filter (abs(h.value * f.scale) > fmt_max(f.fmt) * {_ROUNDED}), 0), sum(h.count)
        ) as above,
        ratio(
            coalesce(sum(h.count) filter (h.value <> 0 and abs(h.value * f.scale) < fmt_min_normal(f.fmt)), 0),
            sum(h.count) filter (h.value <> 0)
        ) as below
    from stored.histograms as h
    join operand_fits as f using (segment, rank, seq)
    where h.counted = 'high' and is_plain_cast(f.recipe, f.fmt)
    group by all
),
added as (
    select
        recipe, fmt, alternate, any_value(source) as source, arg_max(scale, amax) as scale,
        is_plain_cast(recipe, fmt) as is_plain, sqnr_db(sum(low_sum_x2), sum(low_sum_err2)) as sqnr_low_db, {_ADDED}
    from operand_fits
    group by all
)
select added.*, above, below
from added
left join counted using (recipe, fmt, alternate)
"""
_BLOCKS = f"""
select recipe, fmt, coalesce(alternate, false) as alternate, {_ADDED}
from stored.blocks
semi join (
    select t.segment, t.rank, t.seq
    from tensors as t
    where t.layer = $layer and t.tensor = $tensor and t.step = $step and {{condition}}
) using (segment, rank, seq)
where sum_x2 is not null
group by all
"""


def fits(run: Run, layer: str, tensor: str, step: int) -> tuple[Fit, ...]:
    """Those that were recorded, then what current scaling would do in `WHATIF_FORMATS`."""
    at: dict[str, Any] = {"layer": layer, "tensor": tensor, "step": step}
    _fill(run, at)
    found = [_fit(row) for row in _rows(run, _FITS, {})]
    found += [_fit(row | {"source": "blocks"}) for row in _rows(run, _BLOCKS, at)]
    place = {recipe: number for number, recipe in enumerate(run.manifest.recipes)}
    known = [fit for fit in found if fit is not None]
    known.sort(key=lambda f: (_ORDER.get(f.source, 0), place.get(f.recipe, len(place)), f.recipe, f.alternate, f.fmt))
    return tuple(known)


def _fill(run: Run, at: dict[str, Any]) -> None:
    """Make the temporary table `operand_fits`: error sums of every record under every recipe and format."""
    names = "judged_errors tensors kernel_amax current_scale is_judged_pass is_plain_cast fmt_max fmt_min_normal shards"
    con = run.prepare(names)
    condition = counted_once(run, "t.")
    con.execute(_RECORDED.format(condition=condition), at)
    con.execute(_SCALES.format(condition=condition), {**at, "formats": list(WHATIF_FORMATS)})
    con.execute(f"create or replace temp table operand_sums (id int, {_SUM_TYPES})")
    run.reduce("error_sums", "select id, segment, rank, seq, fmt, scale from operand_scales", into="operand_sums")
    con.execute(_WHATIF)


def _rows(run: Run, query: str, parameters: dict[str, Any]) -> list[dict[str, Any]]:
    relation = run.sql(query.format(condition=counted_once(run, "t.")) if parameters else query, **parameters)
    return [dict(zip(relation.columns, row, strict=True)) for row in relation.fetchall()]


def _fit(row: dict[str, Any]) -> Fit | None:
    """None for a format that is not known here: the run may be of a newer version."""
    fmt = _FORMATS.get(row["fmt"])
    if fmt is None:
        return None
    scale = row.get("scale") if row.pop("is_plain", False) else None
    limits = (fmt.max, fmt.min_normal, fmt.min_subnormal)
    largest, normal, subnormal = (limit / scale if scale else None for limit in limits)
    cells = {"scale": None, "above": None, "below": None, "sqnr_low_db": None, **row}
    return Fit(
        **cells,
        largest=largest,
        smallest_normal=normal,
        smallest_subnormal=subnormal,
        healthy_sqnr_db=fmt.baseline_sqnr_db,
        floor_sqnr_db=fmt.rounding_floor_sqnr_db,
    )
