"""C01: a checkpoint is loaded into FP8 parameters, and the amax of the random weights before it survives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from fp8debug.analysis.diagnosis import diagnose
from fp8debug.formats import E4M3
from fp8debug.replay import ScaleInForce

if TYPE_CHECKING:
    from tests.field_cases.conftest import Normal, Opened, Replay

DISAGREES = "weight amax history disagrees with the weight"


def history_of(amax: float, recipe: str = "delayed", n_rolls: int = 1) -> ScaleInForce:
    margin = 1 if "margin=1" in recipe else 0
    scale = np.float32(np.float32(448 / 2**margin) / np.float32(amax))
    return ScaleInForce(recipe, E4M3, False, scale, 1 / scale, amax, None, None, n_rolls, None, "ok")


@pytest.mark.parametrize("replay", [{"layers": ("large", "tiny")}], indirect=True)
@pytest.mark.parametrize("n_steps", [1, 3])
@pytest.mark.parametrize("recipe", ["delayed", "delayed:amax_compute_algo=most_recent", "delayed:margin=1"])
def test_loaded_weights_are_clipped_or_lost(
    n_steps: int, recipe: str, replay: Replay, opened: Opened, normal: Normal
) -> None:
    history = history_of(float(normal(256, 256, std=0.02).abs().amax()), recipe)
    for step in range(n_steps):
        for layer, std in (("large", 0.5), ("tiny", 1e-6)):
            replay.observe("w", normal(256, 256, std=std, seed=1), layer=layer, step=step, framework=(history,))
    replay.session.close()
    clipped, lost = sorted(diagnose(opened()), key=lambda finding: finding.worst.layer or "")
    shift = 1.0 if "margin" in recipe else 0.0  # the margin takes one bit off the scale
    for found, layer in ((clipped, "large"), (lost, "tiny")):
        assert (found.rule, found.severity, found.confidence) == ("weight_history", "error", "certain")
        assert found.message.startswith(DISAGREES)
        assert [(place.layer, place.tensor) for place in found.places] == [(layer, "w")]
        assert (found.first_step, found.worst.n_steps) == (0, n_steps)
    numbers = {entry.title: float(entry.value) for entry in clipped.evidence}
    assert numbers["scale gap, bits"] == pytest.approx(4.6 - shift, abs=0.2)
    if not shift:
        assert numbers["overflow, %"] == pytest.approx(85, abs=3)
        assert numbers["SQNR, dB"] == pytest.approx(1.3, abs=0.3)
    assert "so it is clipped" in clipped.message
    numbers = {entry.title: float(entry.value) for entry in lost.evidence}
    assert numbers["scale gap, bits"] == pytest.approx(-14.3 - shift, abs=0.3)
    if not shift:
        assert numbers["underflow, %"] == pytest.approx(16, abs=2)
        assert numbers["SQNR, dB"] == pytest.approx(19, abs=1.5)
    assert "of its values become zero" in lost.message


def test_weights_that_shrank_are_healthy(replay: Replay, opened: Opened, normal: Normal) -> None:
    before = float(normal(256, 256, std=20.0).abs().amax())
    for step in range(3):
        history = history_of(before, n_rolls=1 + step)
        replay.observe("w", normal(256, 256, std=0.02, seed=step), step=step, framework=(history,))
    replay.session.close()
    run = opened()
    assert run.sql("select max(scale_gap_bits) < -9 from scale_gaps").fetchall() == [(True,)]
    assert diagnose(run) == ()
