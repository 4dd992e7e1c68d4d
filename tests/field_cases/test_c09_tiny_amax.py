"""C09: a tensor that is almost zero, for which maximum/amax is infinite in FP32."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from fp8debug.analysis.diagnosis import diagnose
from fp8debug.formats import E4M3
from fp8debug.replay import ScaleInForce

if TYPE_CHECKING:
    from tests.field_cases.conftest import Normal, Opened, Replay


@pytest.mark.parametrize(
    ("tensor", "amax", "degenerate"),
    [
        ("x", 1e-35, False),
        ("x", 1.3e-36, True),
        ("w", 1e-38, True),
        ("x", 1e-40, True),
        ("x", 1e-44, True),
        ("x", 0.0, False),
        ("dy", 1e-35, True),
        ("dy", 1e-33, False),
    ],
)
def test_it_is_labelled_and_not_judged(
    tensor: str, amax: float, degenerate: bool, replay: Replay, opened: Opened
) -> None:
    x = (torch.rand(32, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * amax).float()
    x[0, 0] = amax
    for step in range(3):
        replay.observe(tensor, x, step=step, gemm_dtype=torch.float32)
    replay.session.close()
    run = opened()
    assert run.sql("select bool_and(isfinite(scale)) from errors").fetchall() == [(True,)]
    numbers = run.sql("select sqnr_db, gain, cosine, underflow, scale_gap_bits from tensor_errors").fetchall()
    assert all(number is None or math.isfinite(number) for row in numbers for number in row)
    findings = diagnose(run)
    if not degenerate:
        assert findings == ()
        return
    (found,) = findings
    assert (found.rule, found.severity) == ("degenerate_scale", "watch")
    assert found.message.startswith("DEGENERATE: the amax is")
    assert "underflow" not in found.message


@pytest.mark.parametrize("scale", [math.inf, math.nan, 0.0])
def test_a_recorded_scale_that_is_not_finite_is_an_error(
    scale: float, replay: Replay, opened: Opened, normal: Normal
) -> None:
    given = ScaleInForce("delayed", E4M3, False, np.float32(scale), np.float32(0), 1e-40, 16, 0, 10, 0, "ok")
    replay.observe("x", normal(32, 64), framework=(given,))
    replay.session.close()
    found = diagnose(opened())[0]
    assert (found.rule, found.severity, found.confidence) == ("degenerate_scale", "error", "certain")
    assert found.message.startswith("the recorded scale is ")
