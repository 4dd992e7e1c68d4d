"""What Transformer Engine's quantised tensors hold: codes and scales, in the shape of the operand.

Nothing of Transformer Engine is imported: tensors are told apart by the attributes they have, which differ between
versions. Layouts: `transformer_engine/pytorch/tensor/storage/*.py`; scales are padded (MXFP8, NVFP4: rows to 128,
blocks to 4; 1 x 128 blocks: transposed, rows to 4; 128 x 128: columns to 4), and are cut to the operand here.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from fp8debug.formats import E2M1, E4M3, E5M2, Format
from fp8debug.hooks.dtypes import FP8
from fp8debug.hooks.observed import Payload

_E8M0_BIAS = 127


class UnknownLayout(Exception):
    """A quantised tensor that cannot be read; the message says what it is."""


def is_quantized(tensor: object) -> bool:
    """Whether it is one of Transformer Engine's quantised tensors rather than a plain one."""
    return tensor is not None and any(
        hasattr(tensor, name) for name in ("_rowwise_data", "_fp8_dtype", "_rowwise_storage", "rowwise_gemm_tensor")
    )


def payload_of(tensor: Any, recipe: str | None = None) -> Payload:
    """Codes and scales of a quantised tensor as its row-wise GEMM reads them, or as it is stored where it has no rows.

    Args:
        tensor: of the kind of Float8Tensor, Float8BlockwiseQTensor, MXFP8Tensor or NVFP4Tensor, or a wrapper of one.
        recipe: in our words; None: as the tensor itself tells.

    Raises:
        UnknownLayout: none of these, or laid out in a way that is not known here.
    """
    for inner in ("rowwise_gemm_tensor", "_rowwise_storage"):
        if getattr(tensor, inner, None) is not None:
            return payload_of(getattr(tensor, inner), recipe)
    try:
        if hasattr(tensor, "_fp4_dtype"):
            return _nvfp4(tensor, recipe or "nvfp4")
        if hasattr(tensor, "_is_2D_scaled"):
            return _blockwise(tensor, recipe or "block")
        if hasattr(tensor, "_rowwise_data"):
            return _mxfp8(tensor, recipe or "mxfp8")
        if hasattr(tensor, "_data") and hasattr(tensor, "_scale_inv"):
            return _per_tensor(tensor, recipe or "current")
    except (AttributeError, TypeError, RuntimeError, ValueError) as error:
        raise UnknownLayout(f"{type(tensor).__name__} cannot be read: {error}") from error
    raise UnknownLayout(f"{type(tensor).__name__} is not a quantised tensor that is known here")


def format_of(dtype: object) -> Format:
    """The format that an enumerator such as `DType.kFloat8E4M3` stands for."""
    name = str(getattr(dtype, "name", dtype))
    fmt = next((fmt for fmt in (E4M3, E5M2, E2M1) if name.endswith(fmt.name)), None)
    if fmt is None:
        raise UnknownLayout(f"elements of dtype {name} are not known here")
    return fmt


def _per_tensor(tensor: Any, recipe: str) -> Payload:
    fmt, data = format_of(tensor._fp8_dtype), tensor._data
    if data is None:  # stored transposed alone: the last dimension of the operand comes first
        data = tensor._transpose.movedim(0, -1)
    return Payload(_codes(data, fmt), fmt, tensor._scale_inv.detach().reshape(()), recipe)


def _blockwise(tensor: Any, recipe: str) -> Payload:
    fmt, data, scales = format_of(tensor._fp8_dtype), tensor._rowwise_data, tensor._rowwise_scale_inv
    transposed = data is None
    if transposed:
        data, scales = tensor._columnwise_data, tensor._columnwise_scale_inv
    rows, k = data.shape[:-1].numel() if not transposed else data.shape[0], data.shape[-1]
    if transposed and data.dim() > 2:
        k = data.shape[1:].numel()
    if tensor._is_2D_scaled:
        factors = _spread(scales, 128, 128, rows, k)
    elif scales.shape[0] == math.ceil(k / 128):
        factors = _spread(scales.t(), 1, 128, rows, k)
    else:
        raise UnknownLayout(f"block scales of shape {tuple(scales.shape)} for a tensor of {rows} x {k}")
    if transposed:
        shape = (*data.shape[1:], data.shape[0])
        return Payload(_codes(data.movedim(0, -1), fmt), fmt, factors.t().reshape(shape), recipe)
    return Payload(_codes(data, fmt), fmt, factors.reshape(data.shape), recipe)


def _mxfp8(tensor: Any, recipe: str) -> Payload:
    _require_plain_scales(tensor)
    fmt, data = format_of(tensor._fp8_dtype), tensor._rowwise_data
    if data is not None:
        rows, k = data.shape[:-1].numel(), data.shape[-1]
        factors = _spread(_e8m0(tensor._rowwise_scale_inv), 1, 32, rows, k)
    else:
        data = tensor._columnwise_data
        rows, k = data.shape[:-1].numel(), data.shape[-1]
        factors = _spread(_e8m0(tensor._columnwise_scale_inv), 32, 1, rows, k)
    return Payload(_codes(data, fmt), fmt, factors.reshape(data.shape), recipe)


def _nvfp4(tensor: Any, recipe: str) -> Payload:
    _require_plain_scales(tensor)
    packed = tensor._rowwise_data
    if packed is None:
        raise UnknownLayout("an NVFP4 tensor without row-wise data, whose columns may be rotated")
    codes = torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2)  # the low nibble is the earlier element
    rows, k = codes.shape[:-1].numel(), codes.shape[-1]
    largest = 6.0 * float(getattr(tensor, "_nvfp4_e4m3_max", 448))
    per_tensor = tensor._amax_rowwise.detach().float()
    per_tensor = torch.div(per_tensor, torch.full_like(per_tensor, largest)).reshape(-1, 1)  # one, or one a row
    block = _spread(tensor._rowwise_scale_inv.view(torch.float8_e4m3fn).float(), 1, 16, rows, k)
    return Payload(codes, E2M1, (block * per_tensor[:rows]).reshape(codes.shape), recipe)


def _require_plain_scales(tensor: Any) -> None:
    if getattr(tensor, "_with_gemm_swizzled_scales", False):
        raise UnknownLayout(f"{type(tensor).__name__} with scales in the order of the GEMM kernel")


def _codes(data: torch.Tensor, fmt: Format) -> torch.Tensor:
    return data.detach().contiguous().view(FP8[fmt.name])


def _e8m0(codes: torch.Tensor) -> torch.Tensor:
    """2^(code - 127), NaN for code 255; exact, 2^-127 included, which is a subnormal."""
    codes = codes.view(torch.uint8)
    values = torch.ldexp(torch.ones_like(codes, dtype=torch.float32), codes.to(torch.int32) - _E8M0_BIAS)
    return torch.where(codes == 0xFF, torch.nan, values)


def _spread(scales: torch.Tensor, tall: int, wide: int, rows: int, columns: int) -> torch.Tensor:
    """One scale an element: each covers a block of `tall` x `wide`; what pads the scales is cut off."""
    m, n = math.ceil(rows / tall), math.ceil(columns / wide)
    if scales.dim() != 2 or scales.shape[0] < m or scales.shape[1] < n:
        raise UnknownLayout(f"scales of shape {tuple(scales.shape)} for a tensor of {rows} x {columns}")
    kept = scales.detach()[:m, :n].float()
    return kept.repeat_interleave(tall, 0)[:rows].repeat_interleave(wide, 1)[:, :columns]
