"""The gap of two curves: exact without noise, honest with it; gates; benchmark scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from fp8debug.analysis.compare import Gap, Gate, compare, gap_of, make_curve, parse_gate
from fp8debug.analysis.compare.curve import Floats
from fp8debug.analysis.compare.gate import judge
from fp8debug.analysis.compare.levels import level, rolling_mean, slope
from fp8debug.analysis.compare.scores import compare_scores
from fp8debug.errors import UsageError


def gap(differences: Sequence[float] | Floats, loss: float = 2.0) -> Gap:
    steps = np.arange(len(differences))
    return gap_of(
        make_curve("a", steps, np.full(steps.size, loss)), make_curve("b", steps, loss + np.asarray(differences))
    )


def noise(steps: int, sd: float, seed: int = 0, memory: float = 0.0) -> Floats:
    """Normal, standard deviation `sd`, correlation of neighbours `memory`."""
    values = np.random.default_rng(seed).normal(0, sd, steps)
    for place in range(1, steps):
        values[place] = memory * values[place - 1] + math.sqrt(1 - memory**2) * values[place]
    return values


def test_without_noise_it_is_exact() -> None:
    found = gap([0.5] * 64)
    assert (found.absolute, found.relative, found.low, found.high) == (0.5, 0.25, 0.5, 0.5)
    assert (found.kind, found.trend, found.n_level, found.onset_step) == ("persistent", "flat", 64, 0)
    found = gap([0.0] * 64)
    assert (found.absolute, found.kind, found.onset_step) == (0.0, "none", None)
    found = gap(np.arange(100) / 100)
    assert (found.kind, found.trend) == ("growing", "growing")
    assert found.slope == pytest.approx(10.0), "per 1,000 steps"


@pytest.mark.parametrize("memory", [0.0, 0.5])
def test_the_band_covers_the_truth(memory: float) -> None:
    """95 % of bands, give or take what 120 draws leave open."""
    bands = [gap(0.05 + noise(300, 0.03, seed, memory)) for seed in range(120)]
    covered = sum(band.low <= 0.05 <= band.high for band in bands if band.low is not None and band.high is not None)
    assert covered >= 0.87 * len(bands)


@pytest.mark.parametrize("steps", [200, 1000])
def test_noise_alone_is_no_measurable_gap(steps: int) -> None:
    gaps = [gap(noise(steps, 0.03, seed)) for seed in range(40)]
    assert sum(found.kind == "none" for found in gaps) >= 35, "95 % of 40, less what chance does"
    assert all(found.is_usual for found in gaps)


def test_spikes_are_no_gap() -> None:
    differences = noise(400, 0.02)
    differences[395], differences[200] = 50.0, -50.0
    found = gap(differences)
    assert found.kind == "none"
    assert found.absolute is not None and abs(found.absolute) < 0.01
    assert found.largest_difference == pytest.approx(50, abs=0.1)


def test_a_gap_that_begins_late_is_dated() -> None:
    differences = noise(1000, 0.005)
    differences[700:] += np.linspace(0, 1, 300)
    found = gap(differences)
    assert found.kind == "growing"
    assert found.onset_step is not None and 690 <= found.onset_step <= 710 + found.window
    assert not found.is_from_start


def test_one_that_begins_late_and_stays_is_dated_in_the_verdict() -> None:
    differences = noise(1000, 0.005)
    differences[300:] += 0.2
    steps = np.arange(1000)
    (pair,) = compare(make_curve("a", steps, np.full(1000, 2.0)), [make_curve("b", steps, 2 + differences)]).pairs
    assert (pair.verdict.word, pair.checks) == ("divergence", ())
    assert "step 300" in pair.verdict.headline


def test_nan_is_in_no_mean_and_is_counted() -> None:
    found = gap([0.5] * 32 + [math.nan, math.inf])
    assert (found.n_matched, found.n_nonfinite, found.absolute, found.last_step) == (34, 2, 0.5, 31)
    assert gap([math.nan] * 3).absolute is None


@pytest.mark.parametrize("steps", [1, 3, 15])
def test_few_steps_give_no_band(steps: int) -> None:
    found = gap([0.5] * steps)
    assert (found.absolute, found.low, found.kind, found.trend, found.is_measurable) == (
        0.5,
        None,
        "unknown",
        "unknown",
        False,
    )


def test_levels_by_their_formulas() -> None:
    values = np.arange(16, dtype=np.float64)
    means = np.array([1.5, 5.5, 9.5, 13.5])
    line = slope(values, 3 * values + 1)
    assert line is not None
    assert (line.value, line.start, line.end) == pytest.approx((3.0, 1.0, 46.0))
    flat = np.array([1.0, -1.0] * 8) + np.repeat([0.0, 1.0, 0.0, 1.0], 4)
    found = level(flat)
    # Blocks of 4 have means 0, 1, 0, 1; neighbours anticorrelate, so nothing is widened; t(3) is 3.18.
    error = math.sqrt(1 / 3) / 2
    assert (found.value, found.error) == pytest.approx((0.5, error))
    assert found.high == pytest.approx(0.5 + 3.18 * error, rel=0.01)
    assert means.mean() == level(values).value
    np.testing.assert_allclose(rolling_mean(np.array([1.0, 2.0, 6.0, 4.0]), 3), [1.5, 3, 4, 5])


@pytest.mark.parametrize(
    ("texts", "gate"),
    [
        (["0.01"], Gate(0.01)),
        (["0.25%"], Gate(None, 0.0025)),
        (["0.01", "0.25 %"], Gate(0.01, 0.0025)),
        (["0.01,0.25%"], Gate(0.01, 0.0025)),
        ([], None),
    ],
)
def test_gates(texts: list[str], gate: Gate | None) -> None:
    assert parse_gate(texts) == gate


@pytest.mark.parametrize("texts", [["x"], ["0"], ["-1"], ["nan"], ["1", "2"], ["%"], [""]])
def test_no_gates(texts: list[str]) -> None:
    with pytest.raises(UsageError, match="--gate"):
        parse_gate(texts)


def test_outcomes() -> None:
    half = gap([0.5] * 64)
    assert judge(Gate(0.6), half).outcome == "pass"
    assert judge(Gate(0.4), half).outcome == "fail"
    assert judge(Gate(0.6, 0.2), half).outcome == "fail", "0.2 of a loss of 2 is 0.4"
    assert judge(Gate(0.4), gap([0.5] * 5)).outcome == "undecided"
    assert judge(Gate(0.6), half, "the loss is NaN").outcome == "fail"
    wide = gap(0.011 + noise(64, 0.5))
    assert wide.absolute is not None and wide.absolute > 0.011
    assert judge(Gate(0.011), wide).outcome == "undecided"
    (pair,) = compare(make_curve("a", range(40), [2.0] * 40), [make_curve("b", range(40), [2.0] * 39 + [math.nan])],
                      gate=Gate(0.01)).pairs  # fmt: skip
    assert pair.gate is not None and pair.gate.outcome == "fail"


# Scores ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scores", "verdict", "lagging"),
    [
        ({}, "none_given", []),
        ({"mmlu": 59.5, "gsm8k": 71.0}, "none_lags", []),
        ({"mmlu": 60.5, "gsm8k": 60.0}, "some_lag", ["gsm8k"]),
        ({"mmlu": 50.0, "gsm8k": 20.0}, "all_lag", ["gsm8k", "mmlu"]),
        ({"gsm8k": 20.0, "other": 1.0}, "all_lag", ["gsm8k"]),
    ],
)
def test_scores(scores: dict[str, float], verdict: str, lagging: list[str]) -> None:
    found = compare_scores({"mmlu": 60.0, "gsm8k": 72.0}, scores)
    assert found.verdict == verdict
    assert [score.task for score in found.lagging] == lagging


def test_normal_loss_and_lower_benchmarks() -> None:
    steps = np.arange(300)
    loss = 2.5 + noise(300, 0.01)
    bf16, fp8 = (make_curve(name, steps, loss, facts={"seed": "1"}) for name in ("bf16", "fp8"))
    bf16, fp8 = replace(bf16, scores={"mmlu": 60, "gsm8k": 72}), replace(fp8, scores={"mmlu": 60.2, "gsm8k": 40})
    (pair,) = compare(bf16, [fp8]).pairs
    assert (pair.verdict.word, pair.signals.kinds) == ("lower_benchmarks", ("lower_benchmarks",))
    assert pair.verdict.headline == "Only some tasks lag although the loss is normal."
    text = pair.verdict.sentences[-1]
    assert "gsm8k (72, now 40)" in text and "1 of 2" in text
    assert "fp8debug verify --inference" in text and "checkpoint" in text
    assert pair.triage.status == "no_anomaly"


def test_curves_without_a_step_in_common() -> None:
    early, late = (make_curve(name, np.arange(first, first + 50), np.ones(50)) for name, first in (("a", 0), ("b", 99)))
    (pair,) = compare(early, [late]).pairs
    assert "No gap can be measured: the curves have no step in common." in pair.verdict.sentences
