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


CASES = {
    "a": ("x", 1e-35, False),
    "b": ("x", 1.3e-36, True),
    "c": ("w", 1e-38, True),
    "d": ("x", 1e-40, True),
    "e": ("x", 1e-44, True),
    "f": ("x", 0.0, False),
    "g": ("dy", 1e-35, True),
    "h": ("dy", 1e-33, False),
}
"""By layer: tensor, amax and whether maximum/amax overflows."""
RECORDED = {"inf": math.inf, "nan": math.nan, "zero": 0.0}


@pytest.mark.parametrize("replay", [{"layers": [*CASES, *RECORDED]}], indirect=True)
def test_it_is_labelled_and_not_judged(replay: Replay, opened: Opened, normal: Normal) -> None:
    for step in range(3):
        for layer, (tensor, amax, _) in CASES.items():
            x = (torch.rand(32, 64, generator=torch.Generator().manual_seed(step), dtype=torch.float64) * amax).float()
            x[0, 0] = amax
            replay.observe(tensor, x, step=step, layer=layer, gemm_dtype=torch.float32)
        for layer, scale in RECORDED.items():
            used = np.float32(scale)
            given = ScaleInForce("delayed", E4M3, False, used, np.float32(0), 1e-40, 16, 0, 10, 0, "ok")
            replay.observe("x", normal(16, 64), step=step, layer=layer, framework=(given,))
    replay.session.close()
    run = opened()
    numbers = run.sql(
        "select scale, sqnr_db, gain, cosine, underflow, scale_gap_bits from tensor_errors where recipe = 'current'"
    ).fetchall()
    assert all(number is None or math.isfinite(number) for row in numbers for number in row)
    told = {place.layer: (found, place) for found in diagnose(run) for place in found.places}
    assert told.keys() == {layer for layer, case in CASES.items() if case[-1]} | RECORDED.keys()
    for name, (found, place) in told.items():
        assert (found.rule, found.confidence) == ("degenerate_scale", "certain")
        assert found.severity == ("error" if name in RECORDED else "watch")
        said = "the recorded scale is " if name in RECORDED else "DEGENERATE: the amax is "
        assert place.message.startswith(said) and "underflow" not in place.message
