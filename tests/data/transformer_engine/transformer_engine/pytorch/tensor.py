"""Stand-in: quantised tensors and what makes them."""

from __future__ import annotations

import enum
from typing import Any

import torch


class DType(enum.IntEnum):
    """Tags of element types."""

    kFloat8E4M3 = 7
    kFloat8E5M2 = 8
    kFloat4E2M1 = 9


TORCH_DTYPES = {DType.kFloat8E4M3: torch.float8_e4m3fn, DType.kFloat8E5M2: torch.float8_e5m2}


class Float8Tensor:
    """One scale for all elements."""

    def __init__(self, data: torch.Tensor, scale_inv: torch.Tensor, fp8_dtype: DType, quantizer: Any = None) -> None:
        self._data: torch.Tensor | None = data
        self._transpose: torch.Tensor | None = None
        self._scale_inv = scale_inv
        self._fp8_dtype = fp8_dtype
        self._quantizer = quantizer

    def dequantize(self) -> torch.Tensor:
        assert self._data is not None
        return self._data.view(TORCH_DTYPES[self._fp8_dtype]).float() * self._scale_inv


class MXFP8Tensor:
    """A power of two for 32 elements of a row."""

    def __init__(self, data: torch.Tensor, scales: torch.Tensor, fp8_dtype: DType) -> None:
        self._rowwise_data: torch.Tensor | None = data
        self._rowwise_scale_inv = scales
        self._columnwise_data: torch.Tensor | None = None
        self._columnwise_scale_inv: torch.Tensor | None = None
        self._fp8_dtype = fp8_dtype
        self._with_gemm_swizzled_scales = False

    def dequantize(self) -> torch.Tensor:
        assert self._rowwise_data is not None
        values = self._rowwise_data.view(TORCH_DTYPES[self._fp8_dtype]).float()
        rows, k = values.shape
        factors = torch.exp2(self._rowwise_scale_inv[:rows, : k // 32].float() - 127)
        return (values.reshape(rows, -1, 32) * factors[..., None]).reshape(rows, k)


def _cast(x: torch.Tensor, scale: torch.Tensor, dtype: DType) -> torch.Tensor:
    target = TORCH_DTYPES[dtype]
    largest = torch.finfo(target).max
    return (x.float() * scale).clamp(-largest, largest).to(target).view(torch.uint8)


class Float8Quantizer:
    """Delayed scaling: casts with the scale it is given, notes the amax."""

    def __init__(self, scale: torch.Tensor, amax: torch.Tensor, dtype: DType) -> None:
        self.scale, self.amax, self.dtype = scale, amax, dtype

    def __call__(self, x: torch.Tensor) -> Float8Tensor:
        scale = self.scale.clone()
        self.amax.copy_(torch.maximum(self.amax, x.detach().abs().amax().float()))
        return Float8Tensor(_cast(x.detach(), scale, self.dtype), torch.reciprocal(scale).reshape(1), self.dtype, self)


class Float8CurrentScalingQuantizer:
    """The scale follows from the tensor's own amax."""

    def __init__(self, dtype: DType) -> None:
        self.dtype, self.force_pow_2_scales, self.amax_epsilon = dtype, False, 0.0

    def __call__(self, x: torch.Tensor) -> Float8Tensor:
        amax = x.detach().abs().amax().float()
        scale = torch.div(torch.full_like(amax, torch.finfo(TORCH_DTYPES[self.dtype]).max), amax)
        return Float8Tensor(_cast(x.detach(), scale, self.dtype), torch.reciprocal(scale).reshape(1), self.dtype, self)


class MXFP8Quantizer:
    """The smallest power of two that a block fits under."""

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype

    def __call__(self, x: torch.Tensor) -> MXFP8Tensor:
        rows, k = x.shape
        blocks = x.detach().float().reshape(rows, k // 32, 32)
        largest = torch.finfo(TORCH_DTYPES[self.dtype]).max
        exponents = torch.frexp(blocks.abs().amax(-1) / largest).exponent
        data = _cast(torch.ldexp(blocks, -exponents[..., None]), torch.ones(()), self.dtype)
        scales = torch.zeros(-(-rows // 128) * 128, -(-(k // 32) // 4) * 4, dtype=torch.uint8)
        scales[:rows, : k // 32] = (exponents + 127).to(torch.uint8)
        return MXFP8Tensor(data.reshape(rows, k), scales, self.dtype)
