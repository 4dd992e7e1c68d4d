"""C05: under activation checkpointing the scale of gradients stays at its first value, and their history empty."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from fp8debug.analysis.diagnosis import Finding, diagnose
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
    assert (numbers["underflow, %"], float(numbers["scale gap, bits"])) == ("100", pytest.approx(-33, abs=1))


def test_a_scale_that_follows_is_not_frozen(replay: Replay, opened: Opened, normal: Normal) -> None:
    for step in range(4):
        dy = normal(16, 64, std=10.0**-step, seed=step).bfloat16()
        scale = np.float32(57344 / float(dy.abs().amax()))
        given = ScaleInForce("delayed", E5M2, False, scale, 1 / scale, 1.0, 16, 0, 10, step - 1, "ok")
        replay.observe("dy", dy, step=step, framework=(given,))
    replay.session.close()
    assert opened().sql("from frozen_scales").fetchall() == []


class Framework:
    """Records the gradients of several layers with the scales of a framework that does `scale_of(amaxes so far)`."""

    def __init__(self, replay: Replay, recipe: str, fmt: Format = E5M2, history_len: int = 16) -> None:
        self.replay, self.recipe, self.fmt, self.history_len = replay, recipe, fmt, history_len
        self.amaxes: dict[str, list[float]] = {}

    def right(self, layer: str) -> float:
        """What the recipe gives: 1 before the first amax."""
        seen = self.amaxes.get(layer, [])[-self.history_len :]
        if not seen:
            return 1.0
        amax = seen[-1] if "most_recent" in self.recipe else max(seen)
        return self.fmt.max / 2.0 ** ("margin=1" in self.recipe) / amax

    def step(self, step: int, layer: str, dy: torch.Tensor, scale: float, *, microbatch: int = 0) -> None:
        seen = self.amaxes.setdefault(layer, [])
        zeros = max(self.history_len - len(seen), 0)
        used = np.float32(scale)
        given = ScaleInForce(self.recipe, self.fmt, False, used, 1 / used, None, self.history_len, zeros, len(seen),
                             None, "ok" if seen else "warmup")  # fmt: skip
        self.replay.observe("dy", dy, step=step, layer=layer, framework=(given,), microbatch=microbatch)
        seen.append(float(dy.abs().amax()))

    def diagnose(self, opened: Opened) -> tuple[Finding, ...]:
        self.replay.session.close()
        return diagnose(opened())


RECIPES = ["delayed:amax_history_len=16", "delayed:amax_history_len=16,margin=1",
           "delayed:amax_history_len=16,amax_compute_algo=most_recent"]  # fmt: skip


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("fmt", [E4M3, E5M2])
def test_scales_that_follow_their_history_are_healthy(
    recipe: str, fmt: Format, replay: Replay, opened: Opened, normal: Normal
) -> None:
    framework = Framework(replay, recipe, fmt)
    for step in range(25):
        for microbatch in range(2):
            dy = normal(16, 64, std=1e-3 * (1 + step % 5 / 5), seed=2 * step + microbatch)
            framework.step(step, "fc", dy, framework.right("fc"), microbatch=microbatch)
    assert framework.diagnose(opened) == ()


def test_a_constant_scale_under_a_constant_maximum_is_healthy(replay: Replay, opened: Opened, normal: Normal) -> None:
    framework = Framework(replay, RECIPES[0], E4M3)
    for step in range(14):
        dy = normal(16, 64, std=1e-3 if step else 1.0, seed=step)  # the largest stays in the window
        framework.step(step, "fc", dy, framework.right("fc"))
    assert framework.diagnose(opened) == ()


@pytest.mark.parametrize("fmt", [E4M3, E5M2])
@pytest.mark.parametrize(("since", "recipe"), [(0, RECIPES[0]), (6, RECIPES[0]), (6, RECIPES[1]), (6, RECIPES[2])])
def test_frozen_at_another_value_and_later(
    since: int, recipe: str, fmt: Format, replay: Replay, opened: Opened, normal: Normal
) -> None:
    framework = Framework(replay, recipe, fmt)
    scale = 3.5
    for step in range(16):
        scale = framework.right("fc") if 0 < step <= since else scale
        framework.step(step, "fc", normal(32, 64, std=1e-6 * 2.0**step, seed=step), scale)
    (found,) = framework.diagnose(opened)
    assert (found.rule, found.severity, found.first_step) == ("frozen_scale", "error", since)
    assert found.message.startswith(f"backward scale frozen at {'3.5' if since == 0 else ''}")
    assert f"since step {since}" in found.message and "zeros" not in found.message


@pytest.mark.parametrize("replay", [{"layers": [f"fc{number}" for number in range(4)]}], indirect=True)
def test_one_ratio_everywhere_is_one_finding(replay: Replay, opened: Opened, normal: Normal) -> None:
    framework = Framework(replay, RECIPES[0])
    for step in range(6):
        for number in range(4):
            dy = normal(16, 64, std=10.0 ** (number - step), seed=step)
            framework.step(step, f"fc{number}", dy, framework.right(f"fc{number}") / 2)
    (found,) = framework.diagnose(opened)
    assert (found.rule, found.severity, len(found.places)) == ("stale_scale", "error", 4)
    assert found.message.startswith("backward scale is 0.5 times the one that the recorded amaxes give")


def test_steps_that_are_missing_prove_nothing(replay: Replay, opened: Opened, normal: Normal) -> None:
    for step in range(0, 40, 10):
        scale = np.float32(57344 / 2.0)
        given = ScaleInForce(RECIPES[0], E5M2, False, scale, 1 / scale, 2.0, 16, 0, 100, None, "ok")
        replay.observe("dy", normal(16, 64, std=0.1 + step / 100, seed=step), step=step, framework=(given,))
    replay.session.close()
    assert diagnose(opened()) == ()


def test_an_infinity_in_the_history_is_named(replay: Replay, opened: Opened, normal: Normal) -> None:
    scale = np.float32(1000)
    for step in range(6):
        given = ScaleInForce(RECIPES[0], E5M2, False, scale, 1 / scale, math.inf, 16, 0, 100, None, "ok")
        replay.observe("dy", normal(16, 64, std=2.0**step, seed=step), step=step, framework=(given,))
    replay.session.close()
    found = diagnose(opened())[0]
    assert (found.rule, found.severity) == ("history_inf", "error")
    assert found.message == "the amax history holds an Inf or NaN since step 0: the scale stays at 1000.0"
