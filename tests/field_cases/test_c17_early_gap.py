"""C17: is an early loss gap a fault? One that shrinks is none, one that stays is to be looked into."""

from __future__ import annotations

import numpy as np
import pytest

from fp8debug.analysis.compare import Comparison, Curve, compare, make_curve

STEPS = 2000


def pair_of(seed: int, gap: np.ndarray[tuple[int], np.dtype[np.float64]], noise: float = 0.02) -> Comparison:
    """A baseline at a loss of 3 and a run above it by `gap`."""
    steps = np.arange(gap.size)
    loss = 3 + 0.1 * np.exp(-steps / 400)
    normal = np.random.default_rng(seed).normal(0, noise, gap.size)

    def curve(name: str, values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Curve:
        return make_curve(name, steps, values, facts={"seed": "1", "recipe": name})

    return compare(curve("bf16", loss), [curve("fp8", loss + gap + normal)])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("steps", [1000, 3000])
def test_a_shrinking_gap_blames_no_layer(seed: int, steps: int) -> None:
    true = 0.09 * np.exp(-np.arange(steps) / 3000)
    (pair,) = pair_of(seed, true).pairs
    assert pair.verdict.word == "transient"
    assert pair.verdict.headline == "Early transient, shrinking: no fault shows in the loss."
    assert (pair.triage.status, pair.triage.departures, pair.checks) == ("no_anomaly", (), ())
    gap = pair.gap
    assert gap.absolute is not None and gap.low is not None and gap.high is not None and gap.relative_low is not None
    # The level is the mean over the last n_level steps, so its band is about the mean of the true gap there.
    mean = true[-gap.n_level :].mean()
    assert gap.absolute == pytest.approx(mean, abs=4 * 0.02 / np.sqrt(gap.n_level))
    assert gap.low < gap.absolute < gap.high
    assert gap.relative == pytest.approx(gap.absolute / 3, rel=0.02)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("steps", [200, STEPS])
def test_a_gap_that_stays_is_to_be_investigated(seed: int, steps: int) -> None:
    (pair,) = pair_of(seed, np.full(steps, 0.09)).pairs
    assert (pair.verdict.word, pair.gap.kind, pair.gap.trend) == ("gap", "persistent", "flat")
    assert pair.gap.absolute == pytest.approx(0.09, abs=5 * 0.02 / np.sqrt(steps))
    assert pair.gap.relative == pytest.approx(0.03, abs=0.003)
    assert "investigate" in pair.verdict.headline
    assert ("so far" in pair.verdict.headline) == (steps < 1000)
    assert pair.checks, "it is there from the first step: software first"
    assert pair.triage.status == "not_recorded"


def test_a_gap_from_a_transient_that_has_gone_is_not_measurable() -> None:
    (pair,) = pair_of(0, 0.09 * np.exp(-np.arange(6000) / 300)).pairs
    assert (pair.verdict.word, pair.gap.is_measurable) == ("transient", False)
