"""The views of one row a step: the worst record of each."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fp8debug.analysis import open_run

if TYPE_CHECKING:
    from tests.synthetic_run import SyntheticRun

NewRun = Callable[..., "SyntheticRun"]

BELL = np.random.default_rng(5).normal(0, 1, (16, 32)).astype(np.float32)


def test_operand_steps_are_the_worst_of_their_records(new_run: NewRun, synthetic_run: ModuleType) -> None:
    run = new_run(recipes=["delayed", "current"])
    for step in range(3):
        for microbatch, gap in enumerate((0.25, -3.0, 2.5)):
            x = synthetic_run.as_bfloat16(BELL * (1 + microbatch))
            scale = 448 / float(np.abs(x).max()) * 2.0 ** (gap if step else min(gap, 0.0))
            forced = (synthetic_run.ForcedScale(scale),)
            run.add("fc", "x", x, step=step, microbatch=microbatch, scales=forced, sampled=step != 1)
            run.add("fc", "x", x * 9, step=step, microbatch=microbatch, scales=forced, sampled=step != 1, pass_="eval")
    run.add("other", "x", BELL, step=0, scales=(synthetic_run.ForcedScale(1.0),))
    with open_run(run.write()) as opened:
        records = opened.sql(
            "from tensor_errors where layer = 'fc' and pass = 'forward' and recipe = 'delayed'"
        ).fetchall()
        names = opened.table("tensor_errors").columns
        steps = {
            row[0]: dict(zip(COLUMNS, row[1:], strict=True))
            for row in opened.sql(
                f"select step, {', '.join(COLUMNS)} from operand_steps where layer = 'fc' and recipe = 'delayed'"
            ).fetchall()
        }
        plan = opened.sql("explain (format json) from operand_steps where layer = 'fc'").fetchall()[0][1]
    for step in (0, 2):
        own = [dict(zip(names, row, strict=True)) for row in records if row[names.index("step")] == step]
        assert len(own) == 3
        found = steps[step]
        largest = max(own, key=lambda row: row["amax"])
        assert found["sqnr_db"] == min(row["sqnr_db"] for row in own)
        assert found["sqnr_low_db"] == min(row["sqnr_low_db"] for row in own)
        assert found["underflow"] == max(row["underflow"] for row in own)
        assert found["overflow"] == max(row["overflow"] for row in own)
        assert found["gain"] == max((row["gain"] for row in own), key=lambda gain: abs(gain - 1))
        assert [found["amax"], found["scale"], found["current_scale"]] == [
            largest["amax"], largest["scale"], largest["current_scale"]
        ]  # fmt: skip
    # Clipping counts before waste; where nothing clips, the widest waste. The gap is known without sampling.
    assert [steps[step]["scale_gap_bits"] for step in range(3)] == pytest.approx([-3.0, 2.5, 2.5], abs=1e-6)
    assert steps[1]["sqnr_db"] is None
    assert plan.count("(layer = 'fc')") == 2  # the filter is at the files, not behind the sums


COLUMNS = (
    "amax", "underflow", "overflow", "sqnr_db", "sqnr_low_db", "gain", "scale_gap_bits", "scale", "current_scale",
)  # fmt: skip


def test_no_error_at_all_is_exact(new_run: NewRun) -> None:
    run = new_run()
    run.add("fc", "x", np.full((8, 8), 2.0, dtype=np.float32), step=0)
    with open_run(run.write()) as opened:
        assert opened.sql("select sqnr_db, exact from operand_steps").fetchall() == [(None, True)]


def test_tensor_steps(new_run: NewRun) -> None:
    run = new_run()
    x = np.array([[1.0, -0.5, 0.0, 3.0]], dtype=np.float32)
    bad = np.array([[np.nan, np.inf, 0.25, -np.inf]], dtype=np.float32)
    run.add("fc", "x", x, step=4, sampled=False)
    run.add("fc", "x", bad, step=4, sampled=False, microbatch=1)
    run.add("fc", "x", x * 100, step=4, sampled=False, pass_="recompute")
    run.add("fc", "x", x, step=5, sampled=False, zeros_counted=False)
    with open_run(run.write()) as opened:
        rows = opened.sql("from tensor_steps order by step").fetchall()
    assert rows == [("fc", "x", 4, 3.0, 0.25, 3), ("fc", "x", 5, 3.0, None, None)]


def test_gemm_steps_take_the_exact_sum_where_there_is_one(new_run: NewRun) -> None:
    run = new_run()
    seq = run.add("fc", "x", BELL, step=0)
    later = run.add("fc", "x", BELL, step=1)

    def put(record: int, gemm: str, accumulation: str, err2: float, x2w2: float = 100.0) -> None:
        cells: dict[str, Any] = {"recipe": "current", "fmt": "E4M3", "other_fmt": "E4M3", "alternate": False}
        sums = {"sum_y2": 1.0, "sum_q2": 1.0, "sum_yq": 1.0, "sum_err2": err2, "sum_x2w2": x2w2}
        run.add_detail("gemms", record, gemm=gemm, accumulation=accumulation, n=4, **cells, **sums)

    put(seq, "fprop", "exact", 0.01)
    put(seq, "fprop", "hopper-fast", 0.25)
    put(later, "fprop", "hopper-fast", 0.25, x2w2=0.5)
    with open_run(run.write()) as opened:
        rows = opened.sql(
            "select step, accumulation, rel_l2, sqnr_db, product_sqnr_db, better_sqnr_db from gemm_steps order by step"
        ).fetchall()
    assert [row[:2] for row in rows] == [(0, "exact"), (1, "hopper-fast")]
    assert rows[0][2:] == pytest.approx((0.1, 20.0, 40.0, 40.0))
    assert rows[1][2:] == pytest.approx((0.5, 10 * np.log10(4), 10 * np.log10(2), 10 * np.log10(4)))
