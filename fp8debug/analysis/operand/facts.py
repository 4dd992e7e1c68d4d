"""What an operand is, and what was seen of it beside its errors."""

from __future__ import annotations

from typing import Any

from fp8debug.analysis.distribution import sampled_steps
from fp8debug.analysis.operand.records import Channels, Facts, Payload
from fp8debug.analysis.run import Run
from fp8debug.gemms import gemms_reading

_FACTS = """
select
    arg_max(shape, seq), arg_max(dtype, seq), arg_max(gemm_dtype, seq), arg_max(placement, seq), max(approx),
    count(*), list_sort(list(distinct rank)), min(step), max(step), count(distinct step),
    count(distinct step) filter (sampled),
    sum(coalesce(n_nan, 0) + coalesce(n_posinf, 0) + coalesce(n_neginf, 0))::bigint,
    min(step) filter (n_nan > 0 or n_posinf > 0 or n_neginf > 0)
from records
where layer = $layer and tensor = $tensor and coalesce(row_class, 'all') = 'all' and is_judged_pass(pass)
  and is_payload(dtype) = $is_payload
"""
_LAYER = "select class_name, in_features, out_features from layers where layer = $layer"
_PAYLOAD_COLUMNS = tuple(Payload.__slots__)
_PAYLOAD = f"""
select {", ".join(_PAYLOAD_COLUMNS)}
from (select * from payloads where layer = $layer and tensor = $tensor and is_judged_pass(pass)) as p
left join (
    select segment, rank, seq, gain, sqnr_db, own_gain, is_stale, differs
    from payload_checks
    where layer = $layer and tensor = $tensor
) as c using (segment, rank, seq)
order by abs(step - $step), segment desc, rank, seq desc
limit 1
"""
_CHANNELS = f"""
select {", ".join(Channels.__slots__)}
from channel_stats
where layer = $layer and tensor = $tensor and not coalesce(alternate, false)
order by axis desc, measure, recipe
"""


def facts(run: Run, layer: str, tensor: str) -> Facts:
    """From its records in high precision, or where there are none from those of its codes."""
    given = {"layer": layer, "tensor": tensor}
    row = run.sql(_FACTS, **given, is_payload=False).fetchall()[0]
    if not row[5]:
        row = run.sql(_FACTS, **given, is_payload=True).fetchall()[0]
    shape, dtype, gemm_dtype, placement, approx, n_records, ranks, first, last, n_steps, n_sampled, bad, since = row
    found = run.sql(_LAYER, layer=layer).fetchall()
    class_name, in_features, out_features = found[0] if found else (None, None, None)
    return Facts(
        class_name=class_name,
        in_features=in_features or None,
        out_features=out_features or None,
        gemms=gemms_reading(tensor),
        shape=tuple(shape or ()),
        dtype=dtype,
        gemm_dtype=gemm_dtype,
        placement=placement,
        approx=approx,
        n_records=n_records,
        ranks=tuple(ranks or ()),
        first_step=first,
        last_step=last,
        n_steps=n_steps,
        n_sampled_steps=n_sampled,
        counted_steps=sampled_steps(run, layer, tensor),
        n_nonfinite=bad or 0,
        first_nonfinite_step=since,
    )


def payload(run: Run, layer: str, tensor: str, step: int | None) -> Payload | None:
    """What a GEMM read in low precision at that step, or at the nearest that has any; None: the last."""
    wanted = 2**62 if step is None else step
    rows = run.sql(_PAYLOAD, layer=layer, tensor=tensor, step=wanted).fetchall()
    return Payload(**dict(zip(_PAYLOAD_COLUMNS, rows[0], strict=True))) if rows else None


def channels(run: Run, layer: str, tensor: str) -> tuple[Channels, ...]:
    """One entry an axis, measure and recipe."""
    rows: list[tuple[Any, ...]] = run.sql(_CHANNELS, layer=layer, tensor=tensor).fetchall()
    return tuple(Channels(*row) for row in rows)
