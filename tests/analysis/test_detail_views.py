"""The views of blocks, channels and GEMM results: ratios of sums given as literals, bins merged over records."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fp8debug.analysis import Run, open_run
from fp8debug.analysis.scope import Scope

if TYPE_CHECKING:
    from tests.synthetic_run import SyntheticRun

NewRun = Callable[..., "SyntheticRun"]

X = np.array([1.0, -2.0, 6.0, 0.0], np.float32)
NOTHING_LOST = {"sum_x2": 4.0, "sum_q2": 4.0, "sum_xq": 4.0, "sum_err2": 0.0}


def only_row(run: Run, query: str) -> dict[str, Any]:
    """The one row that `query` gives, by column name."""
    relation = run.sql(query)
    (row,) = relation.fetchall()
    return dict(zip(relation.columns, row, strict=True))


def test_block_ratios(new_run: NewRun) -> None:
    written = new_run()
    seq = written.add("mlp", "x", X, step=3)
    written.add_detail(
        "blocks", seq, recipe="mxfp8", fmt="E4M3", alternate=False, orientation="row", gemm="fprop", sample="all",
        n_total=1000, n=800, n_nonzero=500, n_underflow=50, n_overflow=4, sum_x2=100.0, sum_q2=64.0, sum_xq=72.0,
        sum_err2=0.1, n_blocks=25, n_zero_blocks=4, n_nonfinite_blocks=1, n_saturated_blocks=5, scale_min=0.25,
        scale_median=1.0, scale_max=64.0, worst_block=7, worst_block_sqnr_db=12.5,
    )  # fmt: skip
    with open_run(written.write()) as run:
        got = only_row(run, "from block_errors")
    expected = {
        "mse": 0.1 / 800, "sqnr_db": 30.0, "rel_l2": math.sqrt(0.001), "cosine": 0.9, "gain": 0.72,
        "underflow": 0.1, "overflow": 0.005, "exact": False, "saturated": 0.25, "n_scaled_blocks": 20,
        "scale_range_bits": 8.0, "amax": 6.0,
    }  # fmt: skip
    assert {name: got[name] for name in expected} == pytest.approx(expected)
    key = (got["step"], got["layer"], got["tensor"], got["seq"], got["gemm"], got["worst_block"])
    assert key == (3, "mlp", "x", seq, "fprop", 7)


def test_block_ratios_without_a_value(new_run: NewRun) -> None:
    written = new_run()
    seq = written.add("mlp", "x", X, step=0)
    written.add_detail("blocks", seq, recipe="all zero", n=4, n_nonzero=0, n_underflow=0, n_overflow=0, sum_x2=0.0,
                       sum_q2=0.0, sum_xq=0.0, sum_err2=0.0, n_blocks=1, n_zero_blocks=1, n_nonfinite_blocks=0,
                       n_saturated_blocks=0)  # fmt: skip
    written.add_detail("blocks", seq, recipe="exact", n=4, n_nonzero=4, n_underflow=0, n_overflow=0, **NOTHING_LOST,
                       n_blocks=1, n_zero_blocks=0, n_nonfinite_blocks=0, n_saturated_blocks=0)  # fmt: skip
    columns = "sqnr_db, rel_l2, cosine, gain, underflow, exact, saturated, scale_range_bits"
    with open_run(written.write()) as run:
        assert run.sql(f"select {columns} from block_errors order by recipe").fetchall() == [
            (None, None, None, None, None, True, None, None),
            (None, 0.0, 1.0, 1.0, 0.0, True, 0.0, None),
        ]


def test_gemm_ratios_tell_cancellation_from_error(new_run: NewRun) -> None:
    written = new_run()
    seq = written.add("mlp", "x", X, step=1)
    written.add_detail(
        "gemms", seq, gemm="fprop", recipe="current", fmt="E4M3", other_fmt="E4M3", alternate=False,
        accumulation="exact", sample="rows 0:8 of 64 columns 0:8 of 32", n_rows=8, n_columns=8, depth=64, n=64,
        n_nonfinite=0, sum_y2=10.0, sum_q2=10.0, sum_yq=9.5, sum_err2=1.0, sum_x2w2=1000.0,
    )  # fmt: skip
    columns = "rel_l2, sqnr_db, product_sqnr_db, cancellation_db, cosine, gain, exact"
    with open_run(written.write()) as run:
        got = run.sql(f"select {columns} from gemm_errors").fetchall()[0]
    assert got == pytest.approx((math.sqrt(0.1), 10.0, 30.0, 20.0, 0.95, 0.95, False))


def test_bins_of_channels_add_up_over_records(new_run: NewRun) -> None:
    written = new_run()
    for step, (bins, counts, worst) in enumerate(
        [([-4, 0], [90, 9], (5, 1.1)), ([0, 4, 40], [200, 700, 1], (17, 1200.0))]
    ):
        seq = written.add("mlp", "x", X, step=step)
        written.add_detail("channels", seq, axis="K", measure="amax", sample="all", n_channels=sum(counts) + 2,
                           n_zero=2, bins=bins, counts=counts, worst_channel=worst[0],
                           worst_value=worst[1])  # fmt: skip
    with open_run(written.write()) as run:
        got = only_row(run, "from channel_stats")
    # 90 at 2^-1, 209 at 2^0, 700 at 2^1, 1 at 2^10: 1000 in all; the 500th is at 2^1, and so is the 990th.
    assert (got["median"], got["worst_percentile"]) == (2.0, 2.0)
    assert (got["worst_value"], got["worst_channel"], got["worst_step"]) == (1200.0, 17, 1)
    assert (got["n_records"], got["n_channels"], got["n_zero"], got["recipe"]) == (2, 1004, 4, None)


def test_worst_percent_is_the_low_end_of_sqnr_and_the_high_end_of_underflow(new_run: NewRun) -> None:
    written = new_run()
    recipe = {"recipe": "current", "fmt": "E4M3", "alternate": False, "sample": "all", "axis": "token"}
    seq = written.add("mlp", "x", X, step=0)
    written.add_detail("channels", seq, **recipe, measure="sqnr_db", n_channels=220, n_zero=10, n_exact=10,
                       bins=[-3, 25, 31], counts=[2, 98, 100], worst_channel=3, worst_value=-2.5)  # fmt: skip
    written.add_detail("channels", seq, **recipe, measure="underflow", n_channels=200, n_zero=0,
                       bins=[0, 1, 60], counts=[150, 48, 2], worst_channel=3, worst_value=0.606)  # fmt: skip
    written.add("mlp", "x", X, step=0, pass_="eval")
    written.add_detail("channels", 1, **recipe, measure="underflow", n_channels=9, n_zero=0, bins=[99], counts=[9])
    columns = "measure, n_exact, median, worst_percentile, worst_value, worst_channel"
    with open_run(written.write()) as run:
        assert run.sql(f"select {columns} from channel_stats order by measure").fetchall() == [
            ("sqnr_db", 10, 25.0, -3.0, -2.5, 3),
            ("underflow", None, 0.0, 0.01, 0.606, 3),
        ]


def test_channels_that_are_all_zero_have_no_bins(new_run: NewRun) -> None:
    written = new_run()
    seq = written.add("mlp", "x", X, step=0)
    written.add_detail("channels", seq, axis="K", measure="amax", n_channels=4, n_zero=4, bins=[], counts=[])
    with open_run(written.write()) as run:
        assert run.sql("select n_zero, median, worst_percentile from channel_stats").fetchall() == [(4, None, None)]


def test_a_scope_narrows_them_too(new_run: NewRun) -> None:
    written = new_run(recipes=["mxfp8", "block"])
    for step, layer in enumerate(["a", "b"]):
        seq = written.add(layer, "x", X, step=step)
        written.add_detail("channels", seq, axis="K", measure="amax", n_channels=4, n_zero=0, bins=[0], counts=[4])
        for recipe in ("mxfp8", "block"):
            written.add_detail("blocks", seq, recipe=recipe, **NOTHING_LOST)
            written.add_detail("gemms", seq, recipe=recipe, sum_y2=1.0, sum_err2=0.0)
    path = written.write()
    for scope, expected in (
        (Scope(layer="a"), (2, 2, 1)),
        (Scope(steps=((1, None),)), (2, 2, 1)),
        (Scope(recipes=("mxfp8",)), (2, 2, 2)),
        (Scope(recipes=("block",), layer="b"), (1, 1, 1)),
    ):
        with open_run(path, scope=scope) as run:
            views = ("block_errors", "gemm_errors", "channel_stats")
            assert tuple(len(run.table(view).fetchall()) for view in views) == expected
