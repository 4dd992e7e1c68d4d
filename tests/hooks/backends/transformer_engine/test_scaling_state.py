"""The state of delayed scaling as the framework keeps it, against our own model of the same rules."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fp8debug.formats import E4M3
from fp8debug.hooks.backends.transformer_engine.scaling_state import OperandScales, copy_state
from fp8debug.recipes import DelayedScaling
from fp8debug.replay import Moment, ScaleInForce

AMAXES = [3.0, 7.0, 2.0, 2.0, 0.0, 2.0, 2.5, 11.0, 1.0]


def run(te: Any, recipe: DelayedScaling, amaxes: list[float]) -> list[ScaleInForce]:
    """One operand, second of three slots: a pass reads the state, then the framework rolls."""
    import transformer_engine.pytorch.quantization as quantization

    theirs = te.DelayedScaling(
        margin=recipe.margin,
        amax_history_len=recipe.amax_history_len,
        amax_compute_algo=recipe.amax_compute_algo,
    )
    state = quantization.RecipeState(theirs, True, 3)
    operand = OperandScales(recipe, E4M3, slot=1)
    reads = []
    for step, amax in enumerate(amaxes):
        state.amax_history[0, 1] = amax
        copied = copy_state({"scaling_fwd": state}, "scaling_fwd")
        assert copied is not None
        reads.append(operand.at(copied, Moment(step, 0, 0, "forward"), ran=step > 0))
        assert reads[-1].collected_amax() == amax
        state.update()
    assert [len(read) for read in reads] == [1] * len(amaxes)
    return [read[0] for read in reversed(reads)][::-1]  # asked for in any order


@pytest.mark.parametrize("algorithm", ["max", "most_recent"])
@pytest.mark.parametrize("margin", [0, 2])
def test_read_as_simulated(te: Any, algorithm: str, margin: int) -> None:
    """Every scale is the one that our simulation of the same recipe has, in force at the same pass."""
    recipe = DelayedScaling(amax_history_len=4, amax_compute_algo=algorithm, margin=margin)
    simulated = recipe.new_state([E4M3])
    for step, found in enumerate(run(te, recipe, AMAXES)):
        assert found.scale == simulated.scale(E4M3)
        assert found.status == ("ok" if simulated.n_rolls else "warmup")
        assert found.amax_used == simulated.amax_used or found.amax_used == pytest.approx(simulated.amax_used, 2e-7)
        assert (found.recipe, found.fmt, found.history_len, found.ran) == (recipe.text, E4M3, 4, step > 0)
        assert found.n_rolls == min(simulated.n_rolls, 3), "of the window's slots one is being filled"
        assert found.history_zeros == 3 - found.n_rolls
        simulated.observe(AMAXES[step])
        simulated.roll(step)


def test_the_step_that_set_it(te: Any) -> None:
    """The step whose roll changed the scale; None as long as it was never seen to change."""
    recipe = DelayedScaling(amax_history_len=1, amax_compute_algo="most_recent")
    assert [found.set_at_step for found in run(te, recipe, [4.0, 4.0, 8.0, 8.0])] == [None, 0, 0, 2]


def test_no_state_to_read() -> None:
    """Recipes without a history, and what is laid out otherwise, have none."""
    for state in (None, object(), torch.ones(2)):
        assert copy_state({"scaling_fwd": state}, "scaling_fwd") is None
    assert copy_state({}, "scaling_bwd") is None
    assert copy_state(None, "scaling_fwd") is None
