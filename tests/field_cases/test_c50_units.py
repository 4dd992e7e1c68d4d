"""C50: an absolute error depends on the unit of the tensor, so that a threshold on it is wrong both ways."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from fp8debug.analysis.diagnosis import diagnose
from fp8debug.formats import E4M3
from fp8debug.replay import ScaleInForce

if TYPE_CHECKING:
    from tests.field_cases.conftest import Normal, Opened, Replay

ONE = np.float32(1)


RECIPES = {"dead_static": ("static", "underflow"), "dead_delayed": ("delayed:fp8_format=E4M3", "frozen_scale")}


@pytest.mark.parametrize("replay", [{"layers": (*RECIPES, "healthy", "unused_bits")}], indirect=True)
def test_the_healthy_one_is_not_told_and_the_dead_one_is(replay: Replay, opened: Opened, normal: Normal) -> None:
    amax = 1024 * 4.5
    scale = np.float32(448 / amax)
    for step in range(3):
        replay.observe("x", normal(128, 128, seed=step), step=step, layer="healthy")
        ten_bits = ScaleInForce("delayed", E4M3, False, scale, 1 / scale, amax, 1024, 0, 2000, 0, "ok")
        x = normal(128, 128, seed=step).clamp(-4, 4)
        replay.observe("x", x, step=step, layer="unused_bits", framework=(ten_bits,))
        for layer, (recipe, _) in RECIPES.items():
            unscaled = ScaleInForce(recipe, E4M3, False, ONE, ONE, 448.0, None, None, None, None, "ok")
            replay.observe("dy", normal(128, 128, std=1e-5, seed=step), step=step, layer=layer, framework=(unscaled,))
    replay.session.close()
    run = opened()
    mse = dict(run.sql("select layer, max(mse) from tensor_errors group by layer").fetchall())
    assert mse["healthy"] > 1e-4 > mse["dead_static"]
    assert run.sql("select max(scale_gap_bits) < -10 from scale_gaps where layer = 'unused_bits'").fetchall() == [
        (True,)
    ]
    findings = diagnose(run)
    assert {(f.rule, f.worst.layer, f.worst.tensor) for f in findings} == {
        (rule, layer, "dy") for layer, (_, rule) in RECIPES.items()
    }
    for found in findings:
        assert found.severity == "error" and len(found.places) == 1
        assert {entry.title: entry.value for entry in found.evidence}["underflow, %"] == "100"
