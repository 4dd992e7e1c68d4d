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


@pytest.mark.parametrize("replay", [{"layers": ("healthy", "dead")}], indirect=True)
@pytest.mark.parametrize("recipe", ["static", "delayed:fp8_format=E4M3"])
def test_the_healthy_one_is_not_told_and_the_dead_one_is(
    recipe: str, replay: Replay, opened: Opened, normal: Normal
) -> None:
    unscaled = ScaleInForce(recipe, E4M3, False, ONE, ONE, 448.0, None, None, None, None, "ok")
    for step in range(3):
        replay.observe("x", normal(128, 128, seed=step), step=step, layer="healthy")
        dy = normal(128, 128, std=1e-5, seed=step)
        replay.observe("dy", dy, step=step, layer="dead", framework=(unscaled,))
    replay.session.close()
    run = opened()
    mse = dict(run.sql("select layer, max(mse) from tensor_errors group by layer").fetchall())
    assert mse["healthy"] > 1e-4 > mse["dead"]
    (found,) = diagnose(run)
    assert found.severity == "error" and found.rule == ("underflow" if recipe == "static" else "frozen_scale")
    assert (found.worst.layer, found.worst.tensor) == ("dead", "dy")
    assert {entry.title: entry.value for entry in found.evidence}["underflow, %"] == "100"


def test_unused_bits_alone_are_no_finding(replay: Replay, opened: Opened, normal: Normal) -> None:
    amax = 1024 * 4.5
    scale = np.float32(448 / amax)
    given = ScaleInForce("delayed", E4M3, False, scale, 1 / scale, amax, 1024, 0, 2000, 0, "ok")
    for step in range(4):
        x = normal(128, 128, seed=step).clamp(-4, 4)
        replay.observe("x", x, step=step, framework=(given,))
    replay.session.close()
    run = opened()
    assert run.sql("select max(scale_gap_bits) < -10 from scale_gaps").fetchall() == [(True,)]
    assert diagnose(run) == ()
