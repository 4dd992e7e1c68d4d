"""Curves, their spikes, and the operands that moved before them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fp8debug.analysis import open_run
from fp8debug.analysis.page import page_run
from fp8debug.analysis.page.records import PageRun, Training

if TYPE_CHECKING:
    from tests.analysis.page.conftest import Opened
    from tests.synthetic_run import SyntheticRun

NewRun = Callable[..., "SyntheticRun"]


def shown(run: SyntheticRun) -> tuple[PageRun, Training]:
    with open_run(run.write(), threads=1) as opened:
        page = page_run(opened)
    assert page.training is not None
    return page, page.training


def test_the_planted_spike_is_linked_to_the_operand_that_moved(opened: Opened) -> None:
    training = opened.page.run.training
    assert training is not None
    (spike,) = training.spikes
    assert (spike.series, spike.first_step, spike.last_step) == ("loss", 48, 49)
    assert spike.sentence.startswith("Step 48, the loss is ")
    assert spike.sentence.endswith("; back in its band at step 50.")
    moved = spike.moved[0]
    assert (moved.layer, moved.tensor, moved.metric, moved.step) == (opened.planted.bad_layer, "x", "amax", 45)
    assert moved.value is not None
    assert moved.before is not None
    assert moved.value / moved.before == pytest.approx(16, rel=0.3)
    assert moved.sentence.startswith(f"{opened.planted.bad_layer} x at step 45: amax ")
    assert len(spike.moved) <= 5


def test_ranks_are_averaged_and_what_is_not_finite_is_nan(new_run: NewRun) -> None:
    run = new_run()
    for step in range(3):
        for rank in range(2):
            loss = math.inf if step == 2 else 1.0 + rank
            run.add_row("steps", step=step, rank=rank, loss=loss, lr=0.5 if step else None)
    run.add("fc", "x", np.ones((2, 2), dtype=np.float32), step=0, sampled=False)
    _, training = shown(run)
    assert training.loss is not None
    assert training.lr is not None
    np.testing.assert_array_equal(training.loss, [1.5, 1.5, np.nan])
    np.testing.assert_array_equal(training.lr, [np.nan, 0.5, 0.5])
    assert training.grad_norm is None
    assert [spike.sentence for spike in training.spikes] == [
        "Step 2, the loss is infinite; not back in its band by the last step."
    ]


def test_nonfinite_values_come_first(new_run: NewRun) -> None:
    run = new_run()
    for step in range(12):
        run.add_row("steps", step=step, loss=math.nan if step == 11 else 2.0)
        x = np.full((2, 2), 1e4 if step == 11 else 1.0, dtype=np.float32)
        run.add("first", "x", x, step=step, sampled=False)
        run.add("second", "x", np.array([[1.0, math.nan if step == 10 else 0.0]]), step=step, sampled=False)
    _, training = shown(run)
    assert [(one.layer, one.metric, one.step) for one in training.spikes[0].moved] == [
        ("second", "nonfinite", 10), ("first", "amax", 11)
    ]  # fmt: skip
    assert [one.value for one in training.spikes[0].moved] == [None, pytest.approx(1e4)]


def test_many_spikes_and_steps_are_thinned_and_said(new_run: NewRun) -> None:
    run = new_run()
    heights = {}
    for step in range(2500):
        heights[step] = 2.0 + (step // 100 if step % 100 == 70 and step > 100 else 0)
        run.add_row("steps", step=step, loss=heights[step], grad_norm=1.0)
    page, training = shown(run)
    assert [spike.first_step for spike in training.spikes] == list(range(1770, 2500, 100))
    assert "16 more spikes of the loss or the gradient norm, all lower, are left out." in page.notes
    assert training.loss is not None
    assert training.steps.size <= 2000
    assert {step for step, loss in heights.items() if loss > 2} <= set(training.steps.tolist())
    assert training.loss.tolist() == [heights[step] for step in training.steps.tolist()]
    assert any(note.startswith("Of 2,500 steps of the loss") for note in page.notes)
