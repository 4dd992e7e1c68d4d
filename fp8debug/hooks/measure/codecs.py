"""The casts of `fp8debug.formats` in torch, bit equal to them, on the tensor's device.

torch's own casts saturate or not depending on version, device and format, so the clamp is always explicit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fp8debug.formats import Format

_TORCH_DTYPES = {"E4M3": torch.float8_e4m3fn, "E5M2": torch.float8_e5m2}


def encode(t: Tensor, fmt: Format) -> Tensor:
    """Cast to `fmt`: round to nearest even, saturate (infinities too), keep NaN.

    Args:
        t: float32, bfloat16 or float16 of any shape, already multiplied with the scale.
        fmt: element format.

    Returns:
        float8 tensor of the same shape; `.view(torch.uint8)` gives the codes.

    Raises:
        TypeError: another dtype (torch rounds float64 twice on its way to float8).
    """
    if t.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise TypeError(f"expected float32, bfloat16 or float16, got {t.dtype}: form t.float() * scale first")
    return t.detach().float().clamp(-fmt.max, fmt.max).to(_TORCH_DTYPES[fmt.name])


def fake_quantize(t: Tensor, fmt: Format) -> Tensor:
    """Round to the nearest value of `fmt`; float32 of the same shape. Arguments and errors as in `encode`."""
    return encode(t, fmt).float()
