"""The engine without a compiler: torch reductions for the health, bincount for the histogram."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from fp8debug.hooks.dtypes import FP8_DTYPES
from fp8debug.hooks.measure import checksum, codes, layout
from fp8debug.hooks.measure.counting import numpy_placed
from fp8debug.hooks.measure.engine import Counted
from fp8debug.hooks.measure.health import EMPTY, Health
from fp8debug.metrics import ErrorSums, RankedHistogram
from fp8debug.recipes import scaled_cast

if TYPE_CHECKING:
    from fp8debug.formats import BoolArray, Float32Array, Format
    from fp8debug.hooks.measure.blocks import BlockSums
    from fp8debug.hooks.measure.channels import AxisSums
    from fp8debug.hooks.measure.strips import Strip
    from fp8debug.recipes import BlockRecipe

CHUNK = 1 << 18
"""Elements of one temporary on the CPU: small enough to stay in a cache."""


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
            if way.counted in FP8_DTYPES:  # has no reductions in torch
                return codes.health_of_codes(dense_counts(values.cpu(), way), way.counted)
            read_as = way.source if way.health_of_source else way.counted
            low, high = torch.aminmax(values)
            amax = float(torch.maximum(low.abs(), high.abs()).to(way.source).to(read_as))
            if np.isfinite(amax):
                return Health(t.numel(), None, None, 0, 0, 0, None, amax)
            if way.health_of_source or t.device.type != "cpu":
                return exact_health(values, way.source, read_as)
            return codes.health_of_codes(dense_counts(values, way), way.counted)

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
        histogram = RankedHistogram(values, counts)
        return [histogram.error_sums(scale, fmt) for scale, fmt in requests]

    def tensor_error_sums(
        self, t: torch.Tensor, requests: Sequence[tuple[np.float32, Format]], counted: Counted | None = None
    ) -> list[ErrorSums]:
        """Return the error sums of an FP32 or FP64 tensor from its FP32 values; see Engine."""
        counted = counted or self.count(t, torch.float32)
        low = self.error_sums(counted.values, counted.counts, requests)
        with torch.no_grad():
            exact = self._element_sums(t.detach().cpu(), requests)
        return [
            replace(e, n_low=b.n_low, low_sum_x2=b.low_sum_x2, low_sum_err2=b.low_sum_err2)
            for e, b in zip(exact, low, strict=True)
        ]

    def rounded_sums(
        self,
        counted: Counted,
        quantize: Callable[[Float32Array], tuple[Float32Array, BoolArray]],
        t: torch.Tensor | None = None,
    ) -> ErrorSums:
        """Return the error sums of any way to quantise; see Engine."""
        histogram = RankedHistogram(counted.values, counted.counts)
        low = histogram.sums_of(*quantize(histogram.values))
        if t is None:
            return low
        exact = ErrorSums()
        with torch.no_grad():
            for chunk in cpu_chunks(t.detach().cpu()):
                add_elements(exact, layout.as_array(chunk.to(torch.float32)), quantize)
        return replace(exact, n_low=low.n_low, low_sum_x2=low.low_sum_x2, low_sum_err2=low.low_sum_err2)

    def block_sums(
        self,
        strip: Strip,
        recipe: BlockRecipe,
        tensor: str,
        fmt: Format,
        tensor_amax: float,
        rng: np.random.Generator | None,
    ) -> BlockSums:
        """Return the sums of one strip; see Engine."""
        return numpy_placed.block_sums(strip, recipe, tensor, fmt, tensor_amax, rng)

    def add_channels(
        self, x: Float32Array, requests: Sequence[tuple[np.float32, Format]], lines: AxisSums, columns: AxisSums
    ) -> None:
        """Add one strip to the sums of its lines and columns; see Engine."""
        numpy_placed.add_channels(x, requests, lines, columns)

    def _element_sums(self, t: torch.Tensor, requests: Sequence[tuple[np.float32, Format]]) -> list[ErrorSums]:
        """Sum over the elements of a CPU tensor; the low_ sums are left at 0."""
        found = [ErrorSums() for _ in requests]
        for chunk in cpu_chunks(t):
            x32 = layout.as_array(chunk.to(torch.float32))
            for (scale, fmt), sums in zip(requests, found, strict=True):
                add_elements(sums, x32, partial(scaled_cast, scale=scale, fmt=fmt))
        return found


def cpu_chunks(t: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield vectors of at most CHUNK elements that together are a CPU tensor, in any order."""
    for block in layout.flat_blocks(layout.storage_order(t)):
        yield from block.split(CHUNK)


def dense_counts(values: torch.Tensor, way: codes.Route) -> npt.NDArray[np.int64]:
    """Return the occurrences of each code of `way.counted`, (256,) or (65536,), of a CPU tensor."""
    bits = torch.uint8 if way.counted.itemsize == 1 else torch.int16
    size = 1 << (8 * way.counted.itemsize)
    cpu = torch.device("cpu")  # said, because the script may have set another default
    total = torch.zeros(size, dtype=torch.int64, device=cpu)
    buffer = torch.empty(min(CHUNK, values.numel()), dtype=torch.int32, device=cpu)
    for chunk in cpu_chunks(values):
        code = buffer[: chunk.numel()]
        code.copy_(chunk.to(way.source).to(way.counted).view(bits)).bitwise_and_(size - 1)
        total += torch.bincount(code, minlength=size)
    dense: npt.NDArray[np.int64] = total.numpy()
    return dense


def exact_health(t: torch.Tensor, source: torch.dtype, read_as: torch.dtype) -> Health:
    """Count everything of a tensor cast to `source`, then to `read_as`: a dozen passes and one transfer."""
    chunks = cpu_chunks(t) if t.device.type == "cpu" else iter([t])
    rows = torch.stack([_statistics(chunk.to(source).to(read_as).to(torch.float32)) for chunk in chunks]).cpu().numpy()
    smallest = float(rows[:, 5].min())
    n_zero, n_neg_zero, n_nan, n_posinf, n_neginf = (int(total) for total in rows[:, :5].sum(axis=0))
    return Health(
        t.numel(), n_zero, n_neg_zero, n_nan, n_posinf, n_neginf,
        amin=smallest if np.isfinite(smallest) else None, amax=float(rows[:, 6].max()),
    )  # fmt: skip


def _statistics(x: torch.Tensor) -> torch.Tensor:
    """Zeros, negative zeros, NaN, +Inf, -Inf, smallest non-zero (Inf: none), largest finite magnitude, float64 (7,)."""
    magnitude = torch.where(torch.isfinite(x), x.abs(), 0.0)
    zero = x == 0
    amin = torch.where(magnitude > 0, magnitude, torch.inf).amin()
    flags = (zero, zero & x.signbit(), x.isnan(), x == torch.inf, x == -torch.inf)
    counts = [torch.count_nonzero(flag) for flag in flags]
    return torch.stack([number.to(torch.float64) for number in (*counts, amin, magnitude.amax())])


def add_elements(
    sums: ErrorSums,
    x32: npt.NDArray[np.float32],
    quantize: Callable[[npt.NDArray[np.float32]], tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]],
) -> None:
    """Add the finite ones of FP32 elements, (n,), to sums of one way to quantise; the low_ sums are left alone."""
    x32 = x32[np.isfinite(x32)]
    sums.n += x32.size
    x32 = x32[x32 != 0]
    q32, beyond = quantize(x32)
    with np.errstate(all="ignore"):
        x, q = x32.astype(np.float64), q32.astype(np.float64)
        error = x - q
    sums.n_nonzero += x.size
    sums.n_underflow += int(np.count_nonzero(q32 == 0))
    sums.n_overflow += int(np.count_nonzero(beyond))
    sums.sum_x2 += float(x @ x)
    sums.sum_q2 += float(q @ q)
    sums.sum_xq += float(x @ q)
    sums.sum_err2 += float(error @ error)
