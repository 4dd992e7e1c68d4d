"""The product of two quantised operands, accumulated exactly or as Hopper's FP8 tensor cores do."""

from __future__ import annotations

import numpy as np
import torch

from fp8debug.accumulation import PROMOTED_EVERY, descale, hopper
from fp8debug.formats import E4M3, E5M2, Float32Array
from fp8debug.hooks.probe.operand import Float64Array
from fp8debug.hooks.probe.quantized import Quantized


def product(a: Quantized, b: Quantized, accumulation: str) -> Float64Array | None:
    """a b^T, float64 (lines of a, lines of b); None where no such GEMM exists.

    exact: the dequantised values, accumulated in float64.

    hopper-fast, hopper-promoted: codes in E4M3 or E5M2, factors applied afterwards. One factor a tensor or line is
    applied to the whole sum, as cuBLAS and CUTLASS do; a factor every 128 elements to the sum of those 128, which are
    then added in float32, as DeepGEMM does: that is promoted by itself. No Hopper GEMM reads other blocks or formats.
    """
    if accumulation == "exact":
        return exact_product(a.values.astype(np.float64), b.values.astype(np.float64))
    if a.codes is None or b.codes is None or a.decode is None or b.decode is None:
        return None
    if a.fmt not in (E4M3, E5M2) or b.fmt not in (E4M3, E5M2) or a.length != b.length:
        return None
    promoted = accumulation == "hopper-promoted"
    if a.length is None:
        every = PROMOTED_EVERY if promoted else None
        accumulated = hopper(a.codes, b.codes, promote_every=every, a_format=a.fmt, b_format=b.fmt)
        return descale(accumulated, a.decode, b.decode.T).astype(np.float64)
    if promoted and a.length == PROMOTED_EVERY:
        return _promoted_blocks(a, b).astype(np.float64)
    return None


def exact_product(a: Float64Array, b: Float64Array) -> Float64Array:
    """a b^T in float64. By torch, on the training's own threads: numpy's would spin beside them for milliseconds."""
    product: Float64Array = (torch.from_numpy(a) @ torch.from_numpy(b).T).numpy()
    return product


def _promoted_blocks(a: Quantized, b: Quantized) -> Float32Array:
    assert a.codes is not None and b.codes is not None and a.decode is not None and b.decode is not None
    total = np.zeros((len(a.codes), len(b.codes)), dtype=np.float32)
    for block, start in enumerate(range(0, a.codes.shape[1], PROMOTED_EVERY)):
        piece = slice(start, start + PROMOTED_EVERY)
        summed = hopper(a.codes[:, piece], b.codes[:, piece], promote_every=None, a_format=a.fmt, b_format=b.fmt)
        column = slice(block, block + 1)
        total = descale(summed, a.decode[:, column], b.decode[:, column].T, total)
    return total
