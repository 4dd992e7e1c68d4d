"""C19, a negative control: a gap of 0.004 under noise of 0.03 passes a gate of 0.01, and nothing is flagged."""

from __future__ import annotations

import numpy as np
import pytest

from fp8debug.analysis.compare import Gate, compare, make_curve


@pytest.mark.parametrize(("steps", "seed"), [(24_000, 0), *((5_000, seed) for seed in range(5)), (1_000, 3)])
def test_passes_and_flags_nothing(steps: int, seed: int) -> None:
    places = np.arange(steps)
    loss = 2.5 + 6 * np.exp(-places / (steps / 20))
    noise = np.random.default_rng(seed).normal(0, 0.03, steps)
    noise[steps // 3] = 0.1
    facts = {"seed": "7", "data_order": "a"}
    run = make_curve("fp8", places, loss + 0.004 + noise, facts=facts)
    (pair,) = compare(make_curve("bf16", places, loss, facts=facts), [run], gate=Gate(absolute=0.01)).pairs
    assert pair.gate is not None
    assert pair.gate.outcome == "pass"
    assert (pair.signals.kinds, pair.signals.own, pair.triage.departures) == ((), (), ())
    assert pair.verdict.headline == "No fault shows in the loss."
    assert pair.gap.absolute == pytest.approx(0.004, abs=4 * 0.03 / np.sqrt(pair.gap.n_level))
    assert pair.gap.largest_difference is not None and pair.gap.largest_difference >= 0.1
    assert pair.comparability.level == "comparable"
