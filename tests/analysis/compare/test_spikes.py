"""Spikes: found in a quiet and in a noisy series, their height and recovery, and whose they are."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fp8debug.analysis.compare import Curve, compare, make_curve
from fp8debug.analysis.compare.curve import Floats
from fp8debug.analysis.compare.spikes import Spike, band_of, find_spikes

NAN = math.nan


def losses(seed: int = 0, steps: int = 400, noise: float = 0.05) -> Floats:
    values: Floats = 2.8 + 5 * np.exp(-np.arange(steps) / 40) + np.random.default_rng(seed).normal(0, noise, steps)
    return values


def curve(loss: Floats, grad_norm: Floats | None = None) -> Curve:
    return make_curve("run", np.arange(loss.size), loss, grad_norm=grad_norm)


def spikes(series: str, run: Curve, baseline: Curve | None = None) -> tuple[Spike, ...]:
    band = band_of(run, series)
    assert band is not None
    return find_spikes(band, series, None if baseline is None else band_of(baseline, series))


@pytest.mark.parametrize("seed", range(5))
def test_noise_has_none(seed: int) -> None:
    loss = losses(seed, 2000)
    norm = np.exp(0.3 * np.random.default_rng(seed + 9).normal(size=2000)) * (1 + 5 * np.exp(-np.arange(2000) / 30))
    assert spikes("loss", curve(loss, norm)) == spikes("grad_norm", curve(loss, norm)) == ()


def test_height_and_recovery() -> None:
    loss = losses()
    before = np.median(loss[200 - 64 : 200])
    loss[200:206] = [4.0, 5.0, 4.5, 4.0, 3.6, 3.4]
    (spike,) = spikes("loss", curve(loss))
    assert (spike.first_step, spike.value, spike.peak_step, spike.peak) == (200, 4.0, 201, 5.0)
    assert (spike.recovered_step, spike.n_steps, spike.n_nonfinite) == (206, 6, 0)
    assert spike.before == pytest.approx(before)
    assert spike.height == pytest.approx(5 / before)


def test_norms_are_compared_by_ratio() -> None:
    norm = np.full(100, 0.01)
    norm[50], norm[80] = 0.014, 0.03
    (spike,) = spikes("grad_norm", curve(losses(steps=100), norm))
    assert spike.first_step == 80
    assert spike.ratio == pytest.approx(3.0)


def test_nan_is_a_spike_and_its_recovery_is_counted() -> None:
    loss = losses()
    loss[100:110] = NAN
    (spike,) = spikes("loss", curve(loss))
    assert (spike.first_step, spike.n_nonfinite, spike.recovered_step, spike.peak) == (100, 10, 110, None)
    assert math.isnan(spike.value)
    assert spike.excess == math.inf


def test_one_that_never_comes_back() -> None:
    loss = losses()
    loss[300:] += 2
    (spike,) = spikes("loss", curve(loss))
    assert (spike.first_step, spike.recovered_step, spike.n_steps) == (300, None, 100)
    (pair,) = compare(curve(losses()), [curve(loss)]).pairs
    assert (pair.verdict.word, pair.signals.ends_badly) == (
        "divergence",
        "the loss rose at step 300 and never came back",
    )


@pytest.mark.parametrize(("shift", "is_unique"), [(0, False), (2, False), (9, True)])
def test_shared_with_the_baseline(shift: int, is_unique: bool) -> None:
    run, baseline = losses(), losses()
    run[200] += 2
    baseline[200 + shift] += 1.9
    (spike,) = spikes("loss", curve(run), curve(baseline))
    assert spike.is_unique is is_unique


def test_with_no_steps_of_the_baseline_nearby_nobody_knows() -> None:
    run = losses()
    run[300] += 2
    baseline = make_curve("bf16", np.arange(200), losses()[:200])
    assert [spike.is_unique for spike in spikes("loss", curve(run), baseline)] == [None]
    assert band_of(baseline, "grad_norm") is None


def test_a_series_that_spikes_by_nature_is_no_fault() -> None:
    """Both have nine at different steps; one that is three times as far out still counts."""
    run, baseline = losses(steps=1000), losses(steps=1000)
    run[190:1000:90] += 1.0
    baseline[140:1000:90] += 1.0
    (pair,) = compare(curve(baseline), [curve(run)]).pairs
    assert (len(pair.signals.spikes), pair.signals.own, pair.verdict.word) == (9, (), "none")
    run[640] += 5.0
    (pair,) = compare(curve(baseline), [curve(run)]).pairs
    assert [spike.first_step for spike in pair.signals.own] == [640]
    assert pair.verdict.headline == "One spike, at step 640, that the baseline does not have; the run recovers."


def test_loss_and_norm_of_one_fault_are_one_event() -> None:
    run, norm = losses(), np.ones(400)
    run[200:204] += 2
    norm[199] = 9.0
    (pair,) = compare(curve(losses(), np.ones(400)), [curve(run, norm)]).pairs
    assert (len(pair.signals.own), pair.signals.n_events) == (2, 1)
    assert pair.signals.first_anomaly is not None
    assert (pair.signals.first_anomaly.series, pair.signals.first_anomaly.first_step) == ("grad_norm", 199)
