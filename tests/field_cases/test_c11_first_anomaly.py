"""C11: the gradient norm jumps one step before the loss is NaN; C15's rule that a NaN stays in the curve."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fp8debug.analysis.compare import compare, make_curve

NAN = math.nan
BASELINE = make_curve("bf16", [1, 2, 3], [2.833, 2.830, 2.828], grad_norm=[104.0, 101.0, 99.0])


def test_first_anomaly_is_the_gradient_norm_of_step_2() -> None:
    run = make_curve("fp8", [1, 2, 3], [2.833, 2.831, NAN], grad_norm=[105.0, 572.0, NAN])
    (pair,) = compare(BASELINE, [run]).pairs
    first = pair.signals.first_anomaly
    assert first is not None
    assert (first.series, first.first_step, first.value) == ("grad_norm", 2, 572.0)
    assert first.ratio == pytest.approx(572 / 105)
    assert (pair.verdict.word, pair.run.n_nonfinite) == ("divergence", 1)
    assert (
        pair.verdict.headline == "The run diverges from the first steps on: the loss is NaN or infinite from step 3 on."
    )
    assert "step 2, the gradient norm is 572, 5.4 times the median" in " ".join(pair.verdict.sentences)
    assert pair.triage.status == "not_recorded"


@pytest.mark.parametrize("cell", ["nan", "NaN", ""])
def test_the_same_from_a_file_whatever_the_exporter_makes_of_nan(tmp_path: Path, cell: str) -> None:
    file = tmp_path / "fp8.csv"
    file.write_text(f"iteration,lm loss,grad norm\n1,2.833,105\n2,2.831,572\n3,{cell},{cell}\n")
    (pair,) = compare(BASELINE, [file]).pairs
    assert pair.run.taken == {"step": "iteration", "loss": "lm loss", "grad_norm": "grad norm"}
    assert (pair.run.n_steps, pair.run.n_nonfinite) == (3, 1)
    assert pair.signals.first_anomaly is not None
    assert pair.signals.first_anomaly.first_step == 2


def test_without_a_gradient_norm_the_nan_itself_is_the_first_one() -> None:
    (pair,) = compare(BASELINE, [make_curve("fp8", [1, 2, 3], [2.833, 2.831, NAN])]).pairs
    assert pair.signals.first_anomaly is not None
    assert (pair.signals.first_anomaly.series, pair.signals.first_anomaly.first_step) == ("loss", 3)


def test_where_both_end_in_nan_fp8_is_not_blamed() -> None:
    loss = [3.0 - 0.01 * step for step in range(40)] + [NAN] * 5
    curves = [make_curve(name, range(45), loss, facts={"seed": "1"}) for name in ("bf16", "fp8")]
    (pair,) = compare(curves[0], [curves[1]]).pairs
    assert (pair.verdict.word, pair.signals.kinds, pair.checks) == ("not_enough_evidence", (), ())
    assert pair.verdict.headline == "Both runs end badly: nothing shows that the precision is the cause."


def test_nan_from_the_first_batch_points_to_the_software() -> None:
    (pair,) = compare(make_curve("bf16", range(30), [3.0] * 30), [make_curve("fp8", range(30), [NAN] * 30)]).pairs
    assert (
        pair.verdict.headline == "The run diverges from the first steps on: the loss is NaN or infinite from step 0 on."
    )
    assert "weight cache" in {check.name for check in pair.checks}


def test_what_both_do_is_no_fault_of_fp8() -> None:
    run = make_curve("fp8", [1, 2, 3], [2.833, 2.831, 2.829], grad_norm=[105.0, 572.0, 101.0])
    baseline = make_curve("bf16", [1, 2, 3], [2.833, 2.830, 2.828], grad_norm=[104.0, 560.0, 99.0])
    (pair,) = compare(baseline, [run]).pairs
    assert pair.signals.first_anomaly is None
    assert [spike.is_unique for spike in pair.signals.spikes] == [False]
