"""What the views add to the stored columns: scales side by side, gaps and why there is none."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fp8debug.analysis import open_run

if TYPE_CHECKING:
    from tests.synthetic_run import SyntheticRun

NewRun = Callable[..., "SyntheticRun"]

X = np.linspace(-7, 7, 1024, dtype=np.float32)


def test_every_record_shows_the_scales_side_by_side(new_run: NewRun, synthetic_run: ModuleType) -> None:
    forced = synthetic_run.ForcedScale
    written = new_run()
    scales = (forced(32.0, recipe="delayed"), forced(128.0, recipe="static", source="simulated"))
    written.add("mlp", "x", X, step=3, scales=scales)
    columns = "recipe, scale, current_scale, delayed_scale, scale_gap_bits, gap_source, amin, amax, healthy_sqnr_db"
    with open_run(written.write()) as run:
        rows = {row[0]: row[1:] for row in run.sql(f"select {columns} from tensor_errors").fetchall()}
    amin = float(np.abs(X).min())
    assert rows == {
        "current": (64.0, 64.0, 32.0, 0.0, "simulated", amin, 7.0, 31.5),
        "delayed": (32.0, 64.0, 32.0, -1.0, "framework", amin, 7.0, 31.5),
        "static": (128.0, 64.0, 128.0, 1.0, "simulated", amin, 7.0, 31.5),
    }


@pytest.mark.parametrize(
    ("values", "scale", "status", "gap", "gap_status"),
    [
        (X, 128.0, "ok", 1.0, "ok"),
        (X, 16.0, "ok", -2.0, "ok"),
        (X, float(np.nextafter(np.float32(64), np.float32(65))), "ok", 0.0, "ok"),  # it clips nothing
        (X, 1.0, "warmup", None, "warmup"),
        (X, None, "history_incomplete", None, "history_incomplete"),
        (np.zeros(8), 64.0, "ok", None, "amax_zero"),
        (np.array([1.0, np.inf]), 64.0, "ok", None, "amax_nonfinite"),
        (np.array([7.0, np.nan]), 64.0, "ok", 0.0, "ok"),
        (np.full(8, np.nan), 64.0, "ok", None, "amax_zero"),
        (np.zeros((0, 4)), 64.0, "ok", None, "amax_zero"),
    ],
)
@pytest.mark.parametrize("sampled", [True, False])
def test_gap_or_the_reason_why_there_is_none(
    new_run: NewRun,
    synthetic_run: ModuleType,
    values: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
    scale: float | None,
    status: str,
    gap: float | None,
    gap_status: str,
    sampled: bool,
) -> None:
    forced = synthetic_run.ForcedScale(scale, status=status)
    written = new_run()
    written.add("mlp", "x", values.astype(np.float32), step=0, sampled=sampled, scales=(forced,))
    with open_run(written.write()) as run:
        assert run.sql("select scale_gap_bits, gap_status, sampled from scale_gaps").fetchall() == [
            (gap, gap_status, sampled)
        ]
        errors = run.sql("select scale_gap_bits from tensor_errors where recipe = 'delayed'").fetchall()
        assert errors == ([(gap,)] if sampled and scale is not None else [])


def test_zeros_need_not_be_counted_between_sampled_steps(new_run: NewRun, synthetic_run: ModuleType) -> None:
    written = new_run()
    for step in range(4):
        forced = synthetic_run.ForcedScale(256.0)
        written.add("mlp", "x", X, step=step, sampled=False, scales=(forced,), zeros_counted=False)
    with open_run(written.write()) as run:
        assert run.sql("select distinct n_nonzero, scale_gap_bits from scale_gaps").fetchall() == [(1024, 2.0)]
        assert run.sql("select n_gap_hit_steps, n_observed_steps from candidates").fetchall() == [(4, 0)]


def test_exact_and_all_zero_records_have_no_decibels(new_run: NewRun) -> None:
    written = new_run()
    written.add("exact", "x", np.array([0.5, -1.0, 2.0, 0.0], np.float32), step=0, with_current=True)
    written.add("zero", "x", np.zeros(16, np.float32), step=0)
    written.add("empty", "x", np.zeros((0, 16), np.float32), step=0)
    columns = "layer, sqnr_db, exact, gain, underflow, overflow, mse"
    with open_run(written.write()) as run:
        assert run.sql(f"select {columns} from tensor_errors order by layer").fetchall() == [
            ("empty", None, True, None, None, None, None),
            ("exact", None, True, 1.0, 0.0, 0.0, 0.0),
            ("zero", None, True, None, None, 0.0, 0.0),
        ]


def test_histograms_carry_the_full_key(new_run: NewRun) -> None:
    written = new_run()
    x = np.array([1.0, 1.0, -0.0, 0.0, 2.5, np.nan], np.float32)
    written.add("mlp", "x", x, step=5, microbatch=2, call=1, rank=3)
    columns = "step, microbatch, call, pass, rank, layer, tensor"
    with open_run(written.write()) as run:
        assert run.sql(f"select distinct {columns} from histograms").fetchall() == [(5, 2, 1, "forward", 3, "mlp", "x")]
        counts = run.sql("select value, signbit(value), count from histograms order by value, 2").fetchall()
        assert counts == [(0.0, False, 1), (-0.0, True, 1), (1.0, False, 2), (2.5, False, 1)]


def test_whatif_takes_any_scale_of_the_record(new_run: NewRun) -> None:
    written = new_run()
    written.add("mlp", "x", X, step=0)
    query = "select scale, sqnr_db from whatif('E4M3', scale_of := current_scale(amax, 'E4M3') * 4)"
    with open_run(written.write()) as run:
        ((scale, sqnr),) = run.sql(query).fetchall()
        assert scale == 256.0
        assert sqnr < 5
        ((margin_scale, margin_sqnr),) = run.sql(
            "select scale, sqnr_db from whatif_current('E4M3', margin := 3)"
        ).fetchall()
        assert margin_scale == 8.0
        ((exact_power_loses_nothing,),) = run.sql("select sqnr_db from whatif_current('E4M3')").fetchall()
        assert margin_sqnr == pytest.approx(exact_power_loses_nothing, abs=0.3)
