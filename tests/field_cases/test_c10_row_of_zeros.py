"""C10: row-wise scaling, a row of zeros, and NaN from the first step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from fp8debug.analysis.diagnosis import diagnose
from fp8debug.formats import E4M3
from fp8debug.hooks.observed import Payload

if TYPE_CHECKING:
    from tests.field_cases.conftest import Normal, Opened, Replay

ROWWISE = {"recipes": ["rowwise"], "detail": ["blocks"]}


def with_zero_row(normal: Normal) -> torch.Tensor:
    x = normal(4, 64)
    x[2] = 0
    return x


def quantised(x: torch.Tensor, epsilon: float) -> Payload:
    """What a row-wise quantiser makes of it."""
    scale = torch.div(torch.tensor(448.0), x.abs().amax(dim=1, keepdim=True).clamp(min=epsilon))
    codes = (x * scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    return Payload(codes, E4M3, scale.reciprocal(), "rowwise")


@pytest.mark.parametrize("replay", [{**ROWWISE, "layers": ("up", "down")}], indirect=True)
def test_without_an_epsilon_the_quantiser_produces_the_nan(replay: Replay, opened: Opened, normal: Normal) -> None:
    x = with_zero_row(normal)
    replay.observe("w", normal(8, 64), layer="up")
    replay.observe("x", x, payload=quantised(x, 0.0), layer="down")
    replay.session.close()
    run = opened()
    origin, zeros = diagnose(run)
    assert (origin.rule, origin.severity, origin.worst.layer, origin.worst.tensor) == (
        "nonfinite",
        "error",
        "down",
        "x",
    )
    assert "step 0, micro-batch 0, forward, fprop, rank 0: down codes of x, row 2" in origin.message
    assert "produced by the quantiser: the tensor itself was finite" in origin.message
    assert (zeros.rule, zeros.severity, zeros.worst.layer) == ("zero_rows", "error", "down")
    assert zeros.message.startswith("1 of 4 rows are zero at step 0")
    assert "needs eps" in zeros.message


@pytest.mark.parametrize("replay", [ROWWISE], indirect=True)
def test_with_an_epsilon_the_row_comes_back_as_zeros(replay: Replay, opened: Opened, normal: Normal) -> None:
    x = with_zero_row(normal)
    replay.observe("x", x, payload=quantised(x, 1e-12))
    replay.session.close()
    run = opened()
    numbers = run.sql("select max(underflow), bool_and(isfinite(gain)) from block_errors where gemm = 'fprop'")
    assert numbers.fetchall() == [(0.0, True)]
    (zeros,) = diagnose(run)
    assert (zeros.rule, zeros.severity) == ("zero_rows", "note")
    assert "needs eps" in zeros.message
