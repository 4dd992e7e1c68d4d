"""Which numbers are counted for a tensor, and what a table of counted codes says.

A *code* is the bit pattern of an element as an unsigned integer: 16 bits for BF16 and FP16, 8 for FP8.
"""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from fp8debug.hooks.dtypes import FP8_DTYPES
from fp8debug.hooks.measure.health import Health

INFINITY = {torch.bfloat16: 0x7F80, torch.float16: 0x7C00, torch.float32: 0x7F800000}
"""Code of +Inf; larger magnitudes are NaN, smaller ones finite."""

_PATTERN, _FLOAT = struct.Struct("=I"), struct.Struct("=f")

ROUNDING_LIMITS = {torch.bfloat16: (0x8000, 0x7F7F8000), torch.float16: (0x33000000, 0x477FF000)}
"""FP32 patterns: the largest that rounds to zero, the smallest that rounds to infinity."""


class UnsupportedDtype(TypeError):
    """A tensor whose elements are not floating-point numbers that a GEMM could read."""


@dataclass(frozen=True, slots=True)
class Route:
    """How a tensor of one dtype is measured."""

    source: torch.dtype
    """Dtype whose bits the kernels read; float64 is cast to float32 first."""
    counted: torch.dtype
    """Dtype whose codes are counted."""
    health_of_source: bool
    """True when the health is of the source values, not of the counted ones."""

    @property
    def approx(self) -> str | None:
        """'bf16' when the counted values are rounded further than what the GEMM reads."""
        return "bf16" if self.health_of_source else None


@functools.cache  # every tensor of a step asks
def route(dtype: torch.dtype, gemm_dtype: torch.dtype) -> Route:
    """Say how a tensor of `dtype` is measured that a GEMM reads as `gemm_dtype`.

    Raises:
        UnsupportedDtype: for integer, boolean and complex tensors and unknown float formats.
    """
    if dtype in (torch.bfloat16, torch.float16) or dtype in FP8_DTYPES:
        return Route(dtype, dtype, False)
    if dtype is torch.float64 or (dtype is torch.float32 and gemm_dtype not in (torch.bfloat16, torch.float16)):
        return Route(torch.float32, torch.bfloat16, True)
    if dtype is torch.float32:
        return Route(torch.float32, gemm_dtype, False)
    raise UnsupportedDtype(f"{dtype} cannot be measured: expected BF16, FP16, FP32, FP64 or FP8")


@dataclass(frozen=True, slots=True)
class CodeTable:
    """The meaning of every code of one dtype."""

    values: npt.NDArray[np.float32]
    """Value of each code, (256,) or (65536,); exact."""
    finite: npt.NDArray[np.bool_]


@functools.cache
def code_table(dtype: torch.dtype) -> CodeTable:
    """Return the table of a dtype of 1 or 2 bytes."""
    bits = np.arange(1 << (8 * dtype.itemsize), dtype=np.uint16 if dtype.itemsize == 2 else np.uint8)
    values = torch.from_numpy(bits).view(dtype).to(torch.float32).numpy()
    return CodeTable(values, np.isfinite(values))


def values_of(codes: npt.NDArray[np.uint32], dtype: torch.dtype) -> npt.NDArray[np.float32]:
    """Values of BF16 or FP16 codes, exact; faster than the table for a few thousand."""
    if dtype is torch.bfloat16:
        return (codes << np.uint32(16)).view(np.float32)
    return codes.astype(np.uint16).view(np.float16).astype(np.float32)


def value_of(code: int, dtype: torch.dtype) -> float:
    """Value of a code of BF16, FP16 or FP32."""
    if dtype is torch.float32:
        value: float = _FLOAT.unpack(_PATTERN.pack(code))[0]  # four times as fast as by numpy's scalars
        return value
    return float(code_table(dtype).values[code])


def round_pattern(pattern: int, dtype: torch.dtype) -> float:
    """Round the magnitude with this FP32 pattern to BF16 or FP16, to nearest, ties to even."""
    if dtype is torch.bfloat16:
        return value_of((pattern + 0x7FFF + (pattern >> 16 & 1)) >> 16, dtype)
    return float(np.float16(np.uint32(pattern).view(np.float32)))


def sparse(counts: npt.NDArray[np.int64], dtype: torch.dtype) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Return the finite values that occur and how often, in code order.

    Args:
        counts: occurrences of each code of `dtype`, (256,) or (65536,).
    """
    table = code_table(dtype)
    present = np.flatnonzero((counts != 0) & table.finite)
    return table.values[present], counts[present]


def health_of_codes(counts: npt.NDArray[np.int64], dtype: torch.dtype) -> Health:
    """Derive the health from the occurrences of each code of `dtype`, (256,) or (65536,)."""
    return health_of_values(code_table(dtype).values, counts)


def health_of_values(values: npt.NDArray[np.float32], counts: npt.NDArray[np.int64]) -> Health:
    """Derive the health from the occurrences of each value, (k,) both."""
    present = np.flatnonzero(counts != 0)  # of booleans is faster than of integers
    values, counts = values[present], counts[present]
    zero = values == 0
    magnitudes = np.abs(values[np.isfinite(values)])
    nonzero = magnitudes[magnitudes > 0]
    return Health(
        n=int(counts.sum()),
        n_zero=int(counts[zero].sum()),
        n_neg_zero=int(counts[zero & np.signbit(values)].sum()),
        n_nan=int(counts[np.isnan(values)].sum()),
        n_posinf=int(counts[values == np.inf].sum()),
        n_neginf=int(counts[values == -np.inf].sum()),
        amin=float(nonzero.min()) if nonzero.size else None,
        amax=float(magnitudes.max()) if magnitudes.size else 0.0,
    )


def keep_rounded_overflow(counts: npt.NDArray[np.int64], health: Health) -> None:
    """Count finite FP32 values that round to a BF16 infinity as the largest finite BF16, in place.

    Args:
        counts: occurrences of each BF16 code, (65536,).
        health: of the FP32 values: its infinities are the true ones.
    """
    for infinity, true in ((0x7F80, health.n_posinf), (0xFF80, health.n_neginf)):
        assert true is not None
        counts[infinity - 1] += counts[infinity] - true
        counts[infinity] = true
