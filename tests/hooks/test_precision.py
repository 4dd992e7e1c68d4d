"""A layer that was asked to run in FP8 and did not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from fp8debug.formats import E4M3
from fp8debug.hooks.observed import Observed, Payload
from fp8debug.replay import Moment

if TYPE_CHECKING:
    from tests.hooks.conftest import Attach, Recorded

BF16 = torch.bfloat16


@pytest.mark.captures(
    case="requested against actual precision",
    how="precision_asked of a backend beside the dtype that the GEMM consumed and its payload",
    sees="precision_asked beside gemm_dtype; scales of the framework with length, zeros and ran of their history",
    limits="a layer asked for FP8 of which no FP8 operand was seen is an event precision_differs when the run closes",
)
def test_what_was_asked_for_and_what_ran(attach: Attach, recorded: Recorded) -> None:
    w = torch.ones(4, 4, dtype=BF16)
    codes = w.to(torch.float8_e4m3fn)
    cases: dict[str, dict[str, Any]] = {
        "asked_and_got": {"precision_asked": "float8_e4m3fn", "payload": Payload(codes, E4M3, 1.0, "current")},
        "asked_for_nothing": {},
        "asked_for_bf16": {"precision_asked": "bfloat16"},
        "asked_in_vain": {"precision_asked": "float8_e4m3fn"},
    }
    with attach(nn.Linear(2, 2)) as session:
        for layer, more in cases.items():
            session._observation.observe(Observed(layer, "w", w, BF16, Moment(0, 0, 0, "forward"), **more))
        gemm = Observed("fp8_gemm", "w", w, torch.float8_e4m3fn, Moment(0, 0, 0, "forward"), (), "float8_e4m3fn")
        session._observation.observe(gemm)
        summary = session.close()
    (event,) = recorded.rows("events", kind="precision_differs")
    message = (
        "asked to run in float8_e4m3fn, but its GEMMs read bfloat16: neither an FP8 operand nor an FP8 GEMM was seen"
    )
    assert (event["layer"], event["message"]) == ("asked_in_vain", message)
    assert f"asked_in_vain: {message}" in summary.problems
    asked = {row["layer"]: row["precision_asked"] for row in recorded.rows("tensors")}
    assert asked["asked_in_vain"] == asked["fp8_gemm"] == "float8_e4m3fn" and asked["asked_for_nothing"] is None
