"""Codes in another order than they were written in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from fp8debug.analysis.checkpoint.reference.hypotheses import explain
from fp8debug.analysis.checkpoint.reference.pair import Pair

Array = npt.NDArray[Any]


def test_halves_of_bytes_exchanged_in_some_lines(pair_of: Callable[..., Pair]) -> None:
    x = np.random.default_rng(0).standard_normal((200, 96)).astype(np.float32)
    s = np.float32(np.abs(x).max() / np.float32(6))
    codes = (x / s).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    lines = np.arange(len(x)) % 5 == 2
    codes[lines] = codes[lines].reshape(-1, 48, 2)[:, :, ::-1].reshape(-1, 96)
    (found,) = explain(pair_of(x, codes, s, fmt="E2M1"))
    assert found.name == "nibble_order"
    assert found.message.endswith("in the other order in 40 of 200 lines, the first of them 2")
