"""C49: zeros that were zeros before the cast, -0 and padding rows are no underflow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from fp8debug.analysis.diagnosis import diagnose

if TYPE_CHECKING:
    from tests.field_cases.conftest import Normal, Opened, Replay


def relu_with_padding(normal: Normal) -> torch.Tensor:
    x = normal(64, 64).relu()
    x[48:] = 0
    return x


def negative_zeros(normal: Normal) -> torch.Tensor:
    x = normal(64, 64)
    return torch.where(x < 0.5, torch.tensor(-0.0), x)


@pytest.mark.parametrize("replay", [{"layers": ("relu", "negative")}], indirect=True)
def test_zeros_are_no_finding(replay: Replay, opened: Opened, normal: Normal) -> None:
    for step in range(4):
        replay.observe("x", relu_with_padding(normal).bfloat16(), step=step, layer="relu")
        replay.observe("x", negative_zeros(normal).bfloat16(), step=step, layer="negative")
    replay.session.close()
    run = opened()
    assert run.sql("select max(underflow), min(sqnr_db) > 30 from tensor_errors").fetchall() == [(0.0, True)]
    assert diagnose(run) == ()


def test_the_denominator_is_what_is_not_zero(replay: Replay, opened: Opened) -> None:
    x = torch.tensor([0, 0, 0, -1e-9, 1e-9, 1, -0.0, 0.5])
    replay.observe("x", x)
    replay.session.close()
    assert opened().sql("select underflow, underflow_all from tensor_errors").fetchall() == [(0.5, 0.25)]
