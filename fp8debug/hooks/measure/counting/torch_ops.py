"""The engine without a compiler: torch reductions for the health, bincount for the histogram."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from fp8debug import metrics
from fp8debug.hooks.measure import checksum, codes, layout
from fp8debug.hooks.measure.engine import Counted
from fp8debug.hooks.measure.health import EMPTY, Health

if TYPE_CHECKING:
    from fp8debug.formats import Format
    from fp8debug.metrics import ErrorSums

CHUNK = 1 << 20
"""Elements of one temporary; bincount widens every code to 64 bits."""


class TorchEngine:
    """Measures with torch operations alone.

    The health of a finite tensor is `n`, `amax` and the absence of non-finite elements; zeros and `amin` are None.
    Tensors of other devices are reduced where they are (health) or copied once to the CPU (count).
    """

    name = "torch"

    def warm_up(self) -> None:
        """Build the code tables."""
        for dtype in (torch.bfloat16, torch.float16):
            codes.code_table(dtype)

    def health(self, t: torch.Tensor, gemm_dtype: torch.dtype) -> Health:
        """Take the health of `t` as the GEMM reads it; raises UnsupportedDtype."""
        way = codes.route(t.dtype, gemm_dtype)
        if t.numel() == 0:
            return EMPTY
        with torch.no_grad():
            values = t.detach()
            if way.counted in codes.FP8_DTYPES:
                return codes.health_of_codes(dense_counts(values.cpu(), way), way.counted)
            read_as = way.source if way.health_of_source else way.counted
            low, high = torch.aminmax(values)
            amax = float(torch.maximum(low.abs(), high.abs()).to(way.source).to(read_as))
            if np.isfinite(amax):
                return Health(t.numel(), None, None, 0, 0, 0, None, amax)
            return exact_health(values, way.source, read_as)

    def count(self, t: torch.Tensor, gemm_dtype: torch.dtype) -> Counted:
        """Count the distinct values of `t` as the GEMM reads it; raises UnsupportedDtype."""
        way = codes.route(t.dtype, gemm_dtype)
        with torch.no_grad():
            values = t.detach().cpu()
            dense = dense_counts(values, way)
            health = codes.health_of_codes(dense, way.counted)
            if way.health_of_source and t.numel():
                health = exact_health(values, torch.float32, torch.float32)
                codes.keep_rounded_overflow(dense, health)
            s1 = s2 = 0
            for block in layout.flat_blocks(values):
                s1, s2 = checksum.fletcher(layout.raw_bytes(block), s1, s2)
        found, counts = codes.sparse(dense, way.counted)
        return Counted(health, found, counts, checksum.finish(s1, s2), way.approx)

    def error_sums(
        self,
        values: npt.NDArray[np.float32],
        counts: npt.NDArray[np.int64],
        requests: Sequence[tuple[np.float32, Format]],
    ) -> list[ErrorSums]:
        """Return the error sums of a histogram for each (scale, format)."""
        return [metrics.error_sums(values, counts, scale, fmt) for scale, fmt in requests]

    def tensor_error_sums(
        self, t: torch.Tensor, requests: Sequence[tuple[np.float32, Format]], counted: Counted | None = None
    ) -> list[ErrorSums]:
        """Return the error sums of an FP32 or FP64 tensor from its FP32 values; see Engine."""
        counted = counted or self.count(t, torch.float32)
        low = self.error_sums(counted.values, counted.counts, requests)
        with torch.no_grad():
            x = t.detach().cpu().to(torch.float32).reshape(-1).numpy()
        values, counts = np.unique(x[np.isfinite(x)], return_counts=True)
        exact = self.error_sums(values, counts, requests)
        return [
            replace(e, n_low=b.n_low, low_sum_x2=b.low_sum_x2, low_sum_err2=b.low_sum_err2)
            for e, b in zip(exact, low, strict=True)
        ]


def dense_counts(values: torch.Tensor, way: codes.Route) -> npt.NDArray[np.int64]:
    """Return the occurrences of each code of `way.counted`, (256,) or (65536,), of a CPU tensor."""
    bits = torch.uint8 if way.counted.itemsize == 1 else torch.int16
    size = 1 << (8 * way.counted.itemsize)
    total = torch.zeros(size, dtype=torch.int64)
    for block in layout.flat_blocks(layout.storage_order(values)):
        for chunk in block.split(CHUNK):
            code = chunk.to(way.source).to(way.counted).view(bits).to(torch.int32) & (size - 1)
            total += torch.bincount(code, minlength=size)
    dense: npt.NDArray[np.int64] = total.numpy()
    return dense


def exact_health(values: torch.Tensor, source: torch.dtype, read_as: torch.dtype) -> Health:
    """Count everything: a dozen passes, for tensors that hold NaN or Inf and for histograms."""
    x = values.to(source).to(read_as).to(torch.float32)
    magnitude = torch.where(torch.isfinite(x), x.abs(), 0.0)
    zero = x == 0
    amin = torch.where(magnitude > 0, magnitude, torch.inf).amin()
    flags = (zero, zero & x.signbit(), x.isnan(), torch.isposinf(x), torch.isneginf(x))
    # One transfer from a device; float64 holds every count and every float32.
    numbers = torch.stack([*(flag.sum().double() for flag in flags), amin.double(), magnitude.amax().double()])
    *counts, smallest, largest = numbers.tolist()
    n_zero, n_neg_zero, n_nan, n_posinf, n_neginf = map(int, counts)
    smallest = smallest if np.isfinite(smallest) else None
    return Health(values.numel(), n_zero, n_neg_zero, n_nan, n_posinf, n_neginf, smallest, largest)
