"""What recipes cost, as records: operands from histograms or blocks, results of GEMMs as measured."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from fp8debug.analysis.run import Run
from fp8debug.analysis.whatif.selection import JUDGED_PASSES, Selection
from fp8debug.analysis.whatif.starts import KEPT
from fp8debug.analysis.whatif.sums import SUMS
from fp8debug.formats import FORMATS
from fp8debug.gemms import GEMMS
from fp8debug.recipes import BFLOAT16


@dataclass(frozen=True, slots=True, kw_only=True)
class OperandErrors:
    """An operand under one recipe; ratios are of the merged sums, named as in the view `tensor_errors`."""

    recipe: str
    fmt: str
    source: str
    """histogram: exact for the values counted | blocks: measured while the tensor was at hand"""
    layer: str | None
    """None: summed over layers."""
    tensor: str
    gemm: str | None
    """GEMM that reads it in blocks this way; None: under any, the sums of both uses of a block recipe added."""
    n_records: int
    n_steps: int
    n_total: int
    """Elements of the records; n of them are finite and were measured."""
    n: int
    n_nonzero: int
    n_underflow: int
    n_overflow: int
    sum_x2: float
    sum_q2: float
    sum_xq: float
    sum_err2: float
    mse: float | None
    sqnr_db: float | None
    sqnr_low_db: float | None
    """None for block recipes: their blocks do not tell small values from large ones."""
    rel_l2: float | None
    cosine: float | None
    gain: float | None
    underflow: float | None
    overflow: float | None
    exact: bool
    healthy_sqnr_db: float
    """What a bell-shaped tensor has in this format at the best scale."""
    db_lost: float | None
    """How far sqnr_db, or sqnr_low_db when that is lower, is below it; None where neither has a number."""
    saturated: float | None
    """Share of the blocks in which an element overflows; None for per-tensor recipes."""
    approx: str | None
    """bf16: FP32 values were rounded before they were counted, in some record at least"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmErrors:
    """The result of a GEMM under one recipe, on the samples recorded; y is the high-precision result."""

    recipe: str
    fmt: str
    other_fmt: str
    layer: str | None
    """None: summed over layers."""
    gemm: str
    accumulation: str
    n_records: int
    n_steps: int
    n: int
    n_nonfinite: int
    sum_y2: float
    sum_q2: float
    sum_yq: float
    sum_err2: float
    sum_x2w2: float
    rel_l2: float | None
    sqnr_db: float | None
    product_sqnr_db: float | None
    """What sqnr_db would be if the products did not cancel."""
    cosine: float | None
    gain: float | None
    exact: bool


_RATIOS = """
    mse(sum(sum_err2), sum(n)) as mse, sqnr_db(sum(sum_x2), sum(sum_err2)) as sqnr_db,
    rel_l2(sum(sum_x2), sum(sum_err2)) as rel_l2,
    cosine(sum(sum_xq), sum(sum_x2), sum(sum_q2)) as cosine, gain(sum(sum_xq), sum(sum_x2)) as gain,
    ratio(sum(n_underflow), sum(n_nonzero)) as underflow, ratio(sum(n_overflow), sum(n)) as overflow,
    is_exact(sum(sum_err2)) as exact
"""
_SUMMED = ", ".join(
    f"sum({name}){'' if 'sum_' in name else '::bigint'} as {name}" for name in SUMS if name in OperandErrors.__slots__
)
_COUNTED = "count(distinct (segment, rank, seq)) as n_records, count(distinct step) as n_steps"
_HEALTHY = {fmt.name: fmt.baseline_sqnr_db for fmt in (*FORMATS.values(), BFLOAT16)}
# A scale whose inverse overflows has infinite sums: one such record would hide all the others.
FINITE = "isfinite(sum_err2) and isfinite(sum_q2)"


def histogram_errors(run: Run, *, per_layer: bool) -> list[OperandErrors]:
    """Merge `whatif_sums` over records."""
    return _operands(
        run,
        f"""
        select
            recipe, fmt, 'histogram' as source, {"layer" if per_layer else "null as layer"}, tensor, null as gemm,
            {_COUNTED}, {_SUMMED}, sum(n)::bigint as n_total, {_RATIOS},
            sqnr_db(sum(low_sum_x2), sum(low_sum_err2)) as sqnr_low_db,
            null as saturated, max(approx) as approx
        from whatif_sums
        join whatif_records using (record)
        where {FINITE} and {KEPT}
        group by recipe, fmt, tensor{", layer" if per_layer else ""}
        """,
    )


def block_errors(run: Run, recipes: list[str], selection: Selection, *, per_layer: bool) -> list[OperandErrors]:
    """Merge the rows of `blocks` over records: for each GEMM, and over both."""
    keys = "recipe, fmt, tensor" + (", layer" if per_layer else "")
    return _operands(
        run,
        f"""
        select
            recipe, fmt, 'blocks' as source, {"layer" if per_layer else "null as layer"}, tensor, gemm,
            {_COUNTED}, {_SUMMED}, sum(n_total)::bigint as n_total, {_RATIOS}, null as sqnr_low_db,
            ratio(sum(n_saturated_blocks), sum(n_blocks - n_zero_blocks - n_nonfinite_blocks)) as saturated,
            max(approx) as approx
        from blocks
        where not alternate and recipe in (select unnest($recipes::varchar[]))
            and {FINITE} and {KEPT} and {selection.records}
        group by grouping sets (({keys}, gemm), ({keys}))
        """,
        recipes=recipes,
    )


def gemm_errors(run: Run, recipes: list[str], selection: Selection, *, per_layer: bool) -> list[GemmErrors]:
    """Merge the rows of `gemms` over records, for GEMMs that read one of the selected tensors."""
    names = [field.name for field in fields(GemmErrors)]
    gemms = [gemm for gemm, read in GEMMS.items() if {tensor for tensor, _ in read} & set(selection.tensors)]
    query = f"""
        select
            recipe, fmt, other_fmt, {"layer" if per_layer else "null as layer"}, gemm, accumulation, {_COUNTED},
            sum(n)::bigint as n, sum(n_nonfinite)::bigint as n_nonfinite,
            sum(sum_y2) as sum_y2, sum(sum_q2) as sum_q2, sum(sum_yq) as sum_yq, sum(sum_err2) as sum_err2,
            sum(sum_x2w2) as sum_x2w2,
            rel_l2(sum(sum_y2), sum(sum_err2)) as rel_l2, sqnr_db(sum(sum_y2), sum(sum_err2)) as sqnr_db,
            decibel(sum(sum_x2w2), sum(sum_err2)) as product_sqnr_db,
            cosine(sum(sum_yq), sum(sum_y2), sum(sum_q2)) as cosine, gain(sum(sum_yq), sum(sum_y2)) as gain,
            is_exact(sum(sum_err2)) as exact
        from gemms
        where not alternate and recipe in (select unnest($recipes::varchar[])) and gemm in (select unnest($gemms))
            and {FINITE} and {KEPT} and {selection.layers} and {selection.steps} and {JUDGED_PASSES}
        group by recipe, fmt, other_fmt, gemm, accumulation{", layer" if per_layer else ""}
    """
    rows = run.sql(f"select {', '.join(names)} from ({query})", recipes=recipes, gemms=gemms).fetchall()
    return [GemmErrors(**dict(zip(names, row, strict=True))) for row in rows]


def _operands(run: Run, query: str, **parameters: Any) -> list[OperandErrors]:
    names = [field.name for field in fields(OperandErrors) if field.name not in ("healthy_sqnr_db", "db_lost")]
    rows = run.sql(f"select {', '.join(names)} from ({query})", **parameters).fetchall()
    return [_with_healthy(dict(zip(names, row, strict=True))) for row in rows]


def _with_healthy(cells: dict[str, Any]) -> OperandErrors:
    healthy = _HEALTHY[cells["fmt"]]
    known = [cells[name] for name in ("sqnr_db", "sqnr_low_db") if cells[name] is not None]
    lost = max(0.0, healthy - min(known)) if known else None
    return OperandErrors(**cells, healthy_sqnr_db=healthy, db_lost=lost)
