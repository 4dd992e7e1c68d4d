"""C55: BF16 and FP8 have no NumPy dtype, and FP16 would invent underflow and overflow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from fp8debug.formats import E4M3
from fp8debug.hooks.observed import Payload

if TYPE_CHECKING:
    from tests.field_cases.conftest import Opened, Replay

X = torch.tensor([[1e-8, 3e-8, 1e-6, 7e4, 1e5]], dtype=torch.bfloat16)


@pytest.mark.parametrize("replay", [{"raw_every": 1, "engine": e} for e in ("torch", "numba")], indirect=True)
def test_values_come_back_bit_for_bit(replay: Replay, opened: Opened) -> None:
    every_code = torch.arange(256, dtype=torch.uint8).reshape(16, 16).view(torch.float8_e4m3fn)
    replay.observe("x", X)
    replay.observe("w", every_code, payload=Payload(every_code, E4M3, 0.5, "current"))
    replay.session.close()
    run = opened()
    ((dtype, amin, amax, n_inf),) = run.sql("select dtype, amin, amax, n_posinf from tensors").fetchall()
    assert (dtype, amin, amax, n_inf) == ("bfloat16", float(X[0, 0]), float(X[0, 4]), 0)
    ((row,),) = run.sql("select values from values where tensor = 'x'").fetchall()
    back = torch.from_numpy(np.array(row, np.float32)).to(torch.bfloat16)
    assert torch.equal(back.view(torch.int16), X[0].view(torch.int16))
    counted = run.sql("select value from histograms where counted = 'high' order by value").fetchall()
    assert [value for (value,) in counted] == X[0].tolist()
    rows = run.sql("select values from values where tensor = 'w' order by row").fetchall()
    codes = torch.from_numpy(np.array([row for (row,) in rows], np.float32)).to(torch.float8_e4m3fn)
    assert torch.equal(codes.view(torch.uint8), every_code.view(torch.uint8))
