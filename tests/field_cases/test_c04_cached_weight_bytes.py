"""C04: FP8 bytes of a weight are cached over micro-batches while the scale they are read with moves on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from fp8debug.analysis.diagnosis import diagnose
from fp8debug.formats import E4M3
from fp8debug.hooks.observed import Payload

if TYPE_CHECKING:
    from tests.field_cases.conftest import Normal, Opened, Replay

CHECKS = """
select microbatch, gain, sqnr_db, own_gain, own_sqnr_db, coalesce(bytes_unchanged, false), coalesce(is_stale, false),
    differs, reason
from payload_checks order by microbatch
"""


def test_bytes_unchanged_but_scale_changed(replay: Replay, opened: Opened, normal: Normal) -> None:
    w = normal(256, 256, std=0.03)
    codes = w.to(torch.float8_e4m3fn)
    for microbatch, scale_inv in enumerate((torch.tensor(1.0), *(w.abs().amax() / 448,) * 4)):
        replay.observe("w", w.bfloat16(), microbatch=microbatch, payload=Payload(codes, E4M3, scale_inv, "current"))
    replay.session.close()
    run = opened()
    first, second, *later = run.sql(CHECKS).fetchall()
    assert first[1:3] == (pytest.approx(1.0, abs=0.01), pytest.approx(30.8, abs=0.5))
    assert first[3] == pytest.approx(first[1], rel=1e-3)
    assert first[5:] == (False, False, False, None)
    assert second[1:3] == (pytest.approx(2.9e-4, rel=0.1), pytest.approx(0.0, abs=0.01))
    assert second[3:5] == (pytest.approx(1.0, abs=0.01), pytest.approx(31.5, abs=0.5))
    assert second[5:] == (True, True, True, None)
    assert [row[5:8] for row in later] == [(True, False, True)] * 3
    cosine = "select cosine(sum_xq, sum_x2, sum_q2) from errors where source = 'payload' order by microbatch"
    assert [c for (c,) in run.sql(cosine).fetchall()] == [pytest.approx(0.9996, abs=2e-4)] * 5
    ((step, layer, tensor, message),) = run.sql(
        "select step, layer, tensor, message from events where kind = 'payload_differs'"
    ).fetchall()
    assert (step, layer, tensor) == (0, "fc", "w")
    assert "bytes unchanged but scale changed" in message
    assert "is 0.000" in message and "at step 0, micro-batch 1," in message
    (finding,) = (found for found in diagnose(run) if found.severity == "error")
    assert (finding.rule, finding.confidence, finding.first_step) == ("stale_bytes", "certain", 0)
    assert finding.message.startswith("bytes unchanged but scale changed: from step 0, micro-batch 1 on")
    assert {entry.title: entry.value for entry in finding.evidence} == {
        "gain of what the GEMM read": f"{second[1]:.3g}",
        "SQNR of what the GEMM read, dB": "0.00",
        "scale now / scale of the bytes": f"{448 / w.abs().max():.4g}",
    }


def test_the_same_bytes_of_half_the_weight_are_right(replay: Replay, opened: Opened, normal: Normal) -> None:
    w = normal(64, 64).bfloat16()
    for step, factor in enumerate((1.0, 0.5)):
        value = w * factor
        scale_inv = value.abs().amax().float() / 448
        codes = (value.float() / scale_inv).clamp(-448, 448).to(torch.float8_e4m3fn)
        replay.observe("w", value, step=step, payload=Payload(codes, E4M3, scale_inv, "current"))
    replay.session.close()
    run = opened()
    rows = run.sql(
        "select bytes_unchanged, is_stale, differs, gain, own_gain from payload_checks order by step"
    ).fetchall()
    assert rows[1][:3] == (True, False, False)
    assert rows[1][3] == pytest.approx(rows[1][4], rel=1e-6)
    assert run.sql("from events where kind = 'payload_differs'").fetchall() == []
    assert diagnose(run) == ()
    assert [n for (n,) in run.sql("select count(*) from tensors").fetchall()] == [2]


def test_small_moves_and_scales_of_blocks(replay: Replay, opened: Opened, normal: Normal) -> None:
    """A move of three per cent is within rounding, and yet no new cast gives the same bytes."""
    w = normal(64, 64)
    scale_inv = w.abs().amax() / 448
    codes = (w / scale_inv).to(torch.float8_e4m3fn)
    blocks = scale_inv * torch.ones(64, 64)
    for step, factor in enumerate((1.0, 1.03, 1.06)):
        replay.observe("w", w, step=step, layer="whole", payload=Payload(codes, E4M3, scale_inv * factor, "current"))
        replay.observe("w", w, step=step, layer="blocks", payload=Payload(codes, E4M3, blocks * factor, "block"))
        grown = Payload(codes, E4M3, scale_inv * factor, "current")
        replay.observe("w", w * factor, step=step, layer="grown", payload=grown)
    replay.session.close()
    (found,) = (one for one in diagnose(opened()) if one.rule == "stale_bytes")
    assert sorted(found.layers) == ["blocks", "whole"]
    assert {place.first_step for place in found.places} == {1}
    assert "the GEMM reads 1.06 times the values" in found.message
