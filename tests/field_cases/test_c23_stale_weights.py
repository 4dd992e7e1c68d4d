"""C23: FP8 copies of weights that outlive the optimizer step: the GEMMs read the weights of an earlier step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from fp8debug.formats import E4M3
from fp8debug.hooks.observed import Payload

if TYPE_CHECKING:
    from tests.field_cases.conftest import Normal, Opened, Replay


def cast(w: torch.Tensor) -> Payload:
    scale_inv = w.abs().amax() / 448
    return Payload((w / scale_inv).clamp(-448, 448).to(torch.float8_e4m3fn), E4M3, scale_inv, "current")


def weights(normal: Normal, n: int = 5, rate: float = 1e-3) -> list[torch.Tensor]:
    """Steps of a sign optimizer."""
    made = [normal(256, 256, std=0.03)]
    for step in range(1, n):
        made.append(made[-1] - rate * normal(256, 256, seed=step).sign())
    return made


def test_values_and_codes_at_fixed_positions(replay: Replay, opened: Opened, normal: Normal) -> None:
    w = normal(256, 256, std=0.03)
    payload = cast(w)
    replay.observe("w", w, payload=payload)
    replay.observe("w", w, microbatch=1, payload=payload)  # followed once a step
    replay.observe("x", w, payload=payload)
    replay.observe("w", w, step=1)  # nothing in low precision, nothing to follow
    blocks = payload.scale_inv * torch.tensor([1.0, 2.0]).reshape(2, 1).repeat_interleave(128, 0)
    replay.observe("w", w, step=2, payload=payload._replace(scale_inv=blocks, recipe="block"))
    replay.observe("w", payload.codes, step=3, payload=payload)
    replay.session.close()
    first, blocked, alone = (
        opened().sql('select stride, "values", codes, scale_inv from wsample order by step').fetchall()
    )
    stride = 17  # 65,536 / 4,096 = 16 would stay in every 16th column
    assert first[0] == stride
    assert first[1] == w.flatten()[::stride].tolist()
    assert first[2] == payload.codes.float().flatten()[::stride].tolist()
    assert first[3] == float(payload.scale_inv)
    assert blocked[2] == pytest.approx((payload.codes.float() * blocks).flatten()[::stride].tolist())
    assert blocked[3] == 1
    assert (alone[1], alone[2]) == (None, first[2])
