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


def history_of(amax: float, recipe: str = "delayed", n_rolls: int = 1) -> ScaleInForce:
    margin = 1 if "margin=1" in recipe else 0
    scale = np.float32(np.float32(448 / 2**margin) / np.float32(amax))
    return ScaleInForce(recipe, E4M3, False, scale, 1 / scale, amax, None, None, n_rolls, None, "ok")


RECIPES = {"max": "delayed", "recent": "delayed:amax_compute_algo=most_recent", "margin": "delayed:margin=1"}
LAYERS = [f"{kind}_{name}" for kind in ("large", "tiny") for name in RECIPES]


@pytest.mark.parametrize("replay", [{"layers": [*LAYERS, "shrank", "grows"]}], indirect=True)
@pytest.mark.parametrize("n_steps", [1, 3])
def test_loaded_weights_are_clipped_or_lost(n_steps: int, replay: Replay, opened: Opened, normal: Normal) -> None:
    before, much = (float(normal(256, 256, std=std).abs().amax()) for std in (0.02, 20.0))
    for step in range(n_steps):
        for layer in LAYERS:
            kind, _, name = layer.partition("_")
            history = history_of(before, RECIPES[name])
            w = normal(256, 256, std=0.5 if kind == "large" else 1e-6, seed=1)
            replay.observe("w", w, layer=layer, step=step, framework=(history,))
        healthy = history_of(much, n_rolls=1 + step)  # ten unused bits, nothing lost
        replay.observe("w", normal(256, 256, std=0.02, seed=step), layer="shrank", step=step, framework=(healthy,))
        doubled = history_of(1e-3 * 2.1 ** (step - 1), n_rolls=step)  # as a LoRA matrix does at its start
        doubled = doubled._replace(status="ok" if step else "warmup")
        w = normal(64, 64, seed=step).clamp(-1, 1) * (1e-3 * 2.1**step)
        replay.observe("w", w, layer="grows", step=step, framework=(doubled,))
    replay.session.close()
    run = opened()
    assert run.sql("select max(scale_gap_bits) < -9 from scale_gaps where layer = 'shrank'").fetchall() == [(True,)]
    findings = {found.worst.layer: found for found in diagnose(run) if found.rule != "clipping"}
    assert findings.keys() == set(LAYERS)
    for where, found in findings.items():
        assert (found.rule, found.severity, found.confidence) == ("weight_history", "error", "certain")
        assert found.message.startswith("weight amax history disagrees with the weight")
        assert (len(found.places), found.worst.tensor, found.first_step, found.worst.n_steps) == (1, "w", 0, n_steps)
        numbers = {entry.title: float(entry.value) for entry in found.evidence}
        is_large, shift = (
            str(where).startswith("large"),
            float(str(where).endswith("margin")),
        )  # a margin takes one bit off
        assert numbers["scale gap, bits"] == pytest.approx((4.6 if is_large else -14.3) - shift, abs=0.3)
        assert ("so it is clipped" in found.message) == is_large
        assert ("of its values become zero" in found.message) != is_large
        if not shift:
            assert numbers["overflow, %"] == pytest.approx(85 if is_large else 0, abs=3)
            assert numbers["underflow, %"] == pytest.approx(0 if is_large else 16, abs=2)
            assert numbers["SQNR, dB"] == pytest.approx(1.3 if is_large else 19, abs=1.5)


@pytest.mark.parametrize("replay", [{"layers": ["lora", "grows", "default"]}], indirect=True)
def test_weights_that_start_at_zero_and_a_recipe_written_out(replay: Replay, opened: Opened, normal: Normal) -> None:
    """A weight that changes between steps is no stale history in any micro-batch; 1024 is the default length."""
    unit = normal(64, 64, seed=1).clamp(-1, 1)
    for step in range(4):
        for microbatch in range(2):
            for layer, amaxes in {"lora": (0, 1e-4, 2e-4, 3e-4), "grows": (1e-3, 3e-3, 9e-3, 2.7e-2)}.items():
                before = amaxes[max(step - 1, 0)]
                given = history_of(before, n_rolls=step) if before else history_of(448.0, n_rolls=step)
                given = given._replace(amax_used=before, status="ok" if step else "warmup")
                moment = {"step": step, "microbatch": microbatch}
                replay.observe("w", unit * amaxes[step], layer=layer, framework=(given,), **moment)
        written = history_of(1.0, "delayed:amax_history_len=1024", n_rolls=500)
        replay.observe("w", normal(64, 64, std=9.0, seed=step), layer="default", step=step, framework=(written,))
    replay.session.close()
    (found,) = (one for one in diagnose(opened()) if one.rule == "weight_history")
    assert found.layers == ("default",)
    assert {"overflow, %", "SQNR, dB"} <= {entry.title for entry in found.evidence}
