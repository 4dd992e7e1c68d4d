"""C05: under activation checkpointing the scale of gradients stays at its first value, and their history empty."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from fp8debug.analysis.diagnosis import diagnose
from fp8debug.formats import E4M3, E5M2, Format
from fp8debug.replay import ScaleInForce

if TYPE_CHECKING:
    from tests.field_cases.conftest import Normal, Opened, Replay

ONE = np.float32(1)


def test_scale_frozen_since_step_0(replay: Replay, opened: Opened, normal: Normal) -> None:
    never_ran = ScaleInForce("delayed:amax_history_len=16", E5M2, False, ONE, ONE, 0.0, 16, 16, 10, None, "ok", False)
    for step in range(10):
        dy = normal(128, 256, std=1e-6 if step < 5 else 1e-5, seed=step).bfloat16()
        replay.observe("dy", dy, step=step, framework=(never_ran,))
    replay.session.close()
    run = opened()
    rows = run.sql(
        "select underflow, cosine, sqnr_db, scale_gap_bits, gap_source from tensor_errors "
        "where recipe like 'delayed%' order by step"
    ).fetchall()
    assert [row[:2] for row in rows[:5]] == [(1.0, None)] * 5  # no cosine: what is left is zero
    for underflow, _, sqnr_db, gap, source in rows[5:]:
        assert underflow == pytest.approx(0.55, rel=0.05)
        assert sqnr_db == pytest.approx(7.2, abs=0.5)
        assert gap == pytest.approx(-30, abs=1)
        assert source == "framework"
    state = run.sql(
        "select distinct scale, history_len, history_zeros, ran from scales where source = 'framework'"
    ).fetchall()
    assert state == [(1.0, 16, 16, False)]
    ((layer, tensor, scale, since, last, n_steps, zero, is_off, message),) = run.sql(
        "select layer, tensor, scale, since_step, last_step, n_steps, history_is_zero, is_off, message "
        "from frozen_scales"
    ).fetchall()
    assert (layer, tensor, scale, since, last, n_steps, zero, is_off) == ("fc", "dy", 1.0, 0, 9, 10, True, True)
    assert message.startswith("scale frozen at 1 since step 0 while the amax moved from ")
    (found,) = diagnose(run)
    assert (found.rule, found.severity, found.confidence) == ("frozen_scale", "error", "certain")
    assert found.message.startswith(
        "backward scale frozen at 1.0 since step 0; the amax history holds nothing but zeros"
    )
    assert (found.worst.tensor, found.first_step, found.last_step) == ("dy", 0, 9)
    numbers = {entry.title: entry.value for entry in found.evidence}
    assert numbers["underflow, %"] == "100" and float(numbers["scale gap, bits"]) == pytest.approx(-33, abs=1)


def test_a_scale_that_follows_is_not_frozen(replay: Replay, opened: Opened, normal: Normal) -> None:
    for step in range(4):
        dy = normal(16, 64, std=10.0**-step, seed=step).bfloat16()
        scale = np.float32(57344 / float(dy.abs().amax()))
        given = ScaleInForce("delayed", E5M2, False, scale, 1 / scale, 1.0, 16, 0, 10, step - 1, "ok")
        replay.observe("dy", dy, step=step, framework=(given,))
    replay.session.close()
    assert opened().sql("from frozen_scales").fetchall() == []


MAX, MARGIN = "delayed:amax_history_len=16", "delayed:amax_history_len=16,margin=1"
RECENT = "delayed:amax_history_len=16,amax_compute_algo=most_recent"


class Framework:
    """Records a layer's gradients with the scale that a framework has for them."""

    def __init__(self, replay: Replay, layer: str, recipe: str, fmt: Format) -> None:
        self.replay, self.layer, self.recipe, self.fmt = replay, layer, recipe, fmt
        self.amaxes: list[float] = []

    def right(self) -> float:
        """What the recipe gives: 1 before the first amax."""
        seen = self.amaxes[-16:]
        if not seen:
            return 1.0
        amax = seen[-1] if self.recipe == RECENT else max(seen)
        return self.fmt.max / 2.0 ** (self.recipe == MARGIN) / amax

    def step(self, step: int, dy: torch.Tensor, scale: float, microbatch: int = 0) -> None:
        used, n = np.float32(scale), len(self.amaxes)
        given = ScaleInForce(self.recipe, self.fmt, False, used, 1 / used, None, 16, max(16 - n, 0), n, None,
                             "ok" if n else "warmup")  # fmt: skip
        self.replay.observe("dy", dy, step=step, layer=self.layer, framework=(given,), microbatch=microbatch)
        self.amaxes.append(float(dy.abs().amax()))


CASES = {
    f"{word}_{fmt.name}": (recipe, fmt)
    for word, recipe in (("max", MAX), ("margin", MARGIN), ("recent", RECENT))
    for fmt in (E4M3, E5M2)
}


@pytest.mark.parametrize("replay", [{"layers": [*CASES, "constant", "missing"]}], indirect=True)
def test_scales_that_follow_their_history_are_healthy(replay: Replay, opened: Opened, normal: Normal) -> None:
    layers = [Framework(replay, layer, *case) for layer, case in CASES.items()]
    constant = Framework(replay, "constant", MAX, E4M3)
    for step in range(21):
        for microbatch in range(2):
            for number, layer in enumerate(layers):
                dy = normal(16, 64, seed=100 * number + 2 * step + microbatch).clamp(-3, 3)
                layer.step(step, dy * (1e-3 * (1 + step % 5 / 5)), layer.right(), microbatch)
        if step < 14:  # the largest stays in the window
            constant.step(step, normal(16, 64, std=1e-3 if step else 1.0, seed=step), constant.right())
        if step % 5 == 0:  # between these steps nothing was recorded
            scale = np.float32(57344 / 2.0)
            given = ScaleInForce(MAX, E5M2, False, scale, 1 / scale, 2.0, 16, 0, 100, None, "ok")
            dy = normal(16, 64, std=0.1 + step / 100, seed=step)
            replay.observe("dy", dy, step=step, layer="missing", framework=(given,))
    replay.session.close()
    assert diagnose(opened()) == ()


@pytest.mark.parametrize(
    "replay", [{"layers": [*CASES, "never", "unset", "ratio1", "ratio2", "ratio3"]}], indirect=True
)
def test_frozen_at_another_value_and_later(replay: Replay, opened: Opened, normal: Normal) -> None:
    layers = [Framework(replay, layer, *case) for layer, case in CASES.items()]
    never, halved = (
        Framework(replay, "never", MAX, E4M3),
        [Framework(replay, f"ratio{n}", MAX, E5M2) for n in (1, 2, 3)],
    )
    frozen = {layer.layer: 1.0 for layer in layers}
    for step in range(16):
        for layer in layers:
            frozen[layer.layer] = layer.right() if step <= 6 else frozen[layer.layer]
            layer.step(step, normal(32, 64, std=1e-6 * 2.0**step, seed=step), frozen[layer.layer])
        # As Transformer Engine has it: one slot of the window is for the amax under way, and nothing counts as set.
        unset = ScaleInForce(MAX, E5M2, False, ONE, ONE, None, 16, 15, 0, None, "warmup")
        dy = normal(32, 64, std=1e-3, seed=step)
        replay.observe("dy", dy, step=step, layer="unset", framework=(unset,))
        never.step(step, normal(32, 64, std=1e-3 * 1.1**step, seed=step), 3.5)
        for number, layer in enumerate(halved):
            layer.step(step, normal(32, 64, std=10.0 ** (number - 2) / 1.1**step, seed=step), layer.right() / 2)
    replay.session.close()
    later, since_0, ratio = sorted(diagnose(opened()), key=lambda found: len(found.places) % 6)
    assert [found.severity for found in (later, since_0, ratio)] == ["error"] * 3
    assert (later.rule, later.first_step, {place.layer for place in later.places}) == ("frozen_scale", 6, {*CASES})
    assert all("since step 6" in place.message and "zeros" not in place.message for place in later.places)
    assert (since_0.rule, since_0.first_step) == ("frozen_scale", 0)
    said = {place.layer: place.message for place in since_0.places}
    assert said.keys() == {"never", "unset"}
    assert said["never"].startswith("backward scale frozen at 3.5 since step 0; the recorded amaxes give ")
    assert said["unset"].startswith("backward scale frozen at 1.0 since step 0; the amax history holds nothing but ze")
    assert (ratio.rule, len(ratio.places)) == ("stale_scale", 3)
    assert ratio.message.startswith("backward scale is 0.5 times the one that the recorded amaxes give")


def test_an_infinity_in_the_history_is_named(replay: Replay, opened: Opened, normal: Normal) -> None:
    scale = np.float32(1000)
    for step in range(6):
        given = ScaleInForce(MAX, E5M2, False, scale, 1 / scale, math.inf, 16, 0, 100, None, "ok")
        replay.observe("dy", normal(16, 64, std=2.0**step, seed=step), step=step, framework=(given,))
    replay.session.close()
    found = diagnose(opened())[0]
    assert (found.rule, found.severity) == ("history_inf", "error")
    assert found.message == "the amax history holds an Inf or NaN since step 0: the scale stays at 1000.0"
