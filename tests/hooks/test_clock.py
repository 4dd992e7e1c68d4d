"""Corners of the clock that no small training reaches."""

from __future__ import annotations

import pytest

from fp8debug.hooks.clock import Clock, FinishedStep


@pytest.fixture
def ended() -> list[FinishedStep]:
    return []


@pytest.fixture
def clock(ended: list[FinishedStep]) -> Clock:
    return Clock(ended.append)


def test_a_step_in_which_one_of_two_optimizers_was_skipped(clock: Clock, ended: list[FinishedStep]) -> None:
    clock.forward(1, True)
    clock.optimizer_stepped(skipped=True)
    clock.optimizer_stepped()
    clock.forward(1, True)
    clock.optimizer_stepped()
    clock.close()
    assert [(step.step, step.skipped) for step in ended] == [(0, True), (1, False)]


def test_optimizer_steps_before_any_forward_end_nothing(clock: Clock, ended: list[FinishedStep]) -> None:
    """As when somebody loads and steps a fresh optimizer to make its state."""
    clock.optimizer_stepped()
    assert clock.forward(1, True) == (0, 0, 0, "forward")
    clock.close()
    assert len(ended) == 1


def test_nothing_seen_is_no_step(clock: Clock, ended: list[FinishedStep]) -> None:
    clock.forward(1, False)
    clock.close()
    assert ended == []


def test_calls_are_counted_for_each_layer_and_pass(clock: Clock) -> None:
    seen = [
        clock.forward(layer, training) for layer, training in ((1, True), (2, True), (1, True), (1, False), (1, True))
    ]
    assert seen == [
        (0, 0, 0, "forward"),
        (0, 0, 0, "forward"),
        (0, 0, 1, "forward"),
        (0, 0, 0, "eval"),
        (0, 0, 2, "forward"),
    ]
    clock.backward()
    assert clock.forward(2, False) == (0, 0, 0, "eval"), "evaluating opens no micro-batch"
    assert clock.forward(1, True) == (0, 1, 0, "forward")
    assert clock.weight_gradient() == (0, 1, 0, "backward")
    assert clock.forward(1, True) == (0, 2, 0, "forward"), "the gradient of a weight ends a micro-batch too"


def test_steps_by_hand_without_anything_else(clock: Clock, ended: list[FinishedStep]) -> None:
    for _ in range(3):
        clock.forward(1, True)
        clock.backward()
        clock.forward(1, True)
        clock.advance()
    assert [(step.step, step.n_microbatches) for step in ended] == [(0, 2), (1, 2), (2, 2)]
    assert all(step.duration_s >= 0 and step.started_unix_s > 1.7e9 for step in ended)
