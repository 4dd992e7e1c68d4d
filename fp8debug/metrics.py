"""Error sums over a histogram, and the ratios they give.

x is a high-precision value, q what is left of it after quantisation, all sums in float64 over the finite values:

    scaled = float32(x) * float32(scale)            in float32, as the kernels do
    q      = float32(code(scaled)) * float32(1 / scale)

Sums add over records; ratios do not. So sums are stored and ratios are computed last. A ratio without a meaning
(0/0, or the logarithm of a perfect result) is None, never 0 or NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fp8debug.formats import BoolArray, Float32Array, Format
from fp8debug.recipes import scaled_cast

Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]


@dataclass(slots=True)
class ErrorSums:
    """The columns of `errors` that are sums; meanings as there."""

    n: int = 0
    n_nonzero: int = 0
    n_underflow: int = 0
    n_overflow: int = 0
    sum_x2: float = 0.0
    sum_q2: float = 0.0
    sum_xq: float = 0.0
    sum_err2: float = 0.0
    n_low: int = 0
    low_sum_x2: float = 0.0
    low_sum_err2: float = 0.0


def n_low_of(n_nonzero: int) -> int:
    """floor(0.99 * n_nonzero), in integers: 0.99 is no binary fraction and the product may fall just below."""
    return n_nonzero * 99 // 100


def low_order(values: Float32Array) -> Int64Array:
    """Indices of the finite non-zero values, smallest magnitude first: one sort for several scales."""
    magnitude = np.abs(values)
    kept = np.flatnonzero((magnitude > 0) & (magnitude < np.inf))
    # A histogram comes as two sorted runs, one a sign: the stable sort only merges them.
    return kept[np.argsort(magnitude[kept], kind="stable")]


class RankedHistogram:
    """A histogram made ready for the sums of several scales: sorted once, squared once.

    Args:
        values: float32, shape (bins,); non-finite ones are left out. They need not be distinct or sorted.
        counts: int64, shape (bins,): how many elements have each value.
        order: `low_order(values)`, when the caller has it.
    """

    __slots__ = ("_count", "_low", "_weight", "_x", "_x2", "_x32", "n", "n_nonzero")

    def __init__(self, values: Float32Array, counts: Int64Array, order: Int64Array | None = None) -> None:
        if order is None:
            order = low_order(values)
        self._x32, self._count = values[order], counts[order]
        self._x, self._weight = self._x32.astype(np.float64), self._count.astype(np.float64)
        self._x2 = self._x * self._x
        self.n_nonzero = int(self._count.sum())
        self.n = self.n_nonzero + int(counts[values == 0].sum())
        self._low = _low_weights(self._count, n_low_of(self.n_nonzero))

    @property
    def values(self) -> Float32Array:
        """The finite non-zero values, float32, smallest magnitude first: what `sums_of` takes q of."""
        return self._x32

    def error_sums(self, scale: np.float32, fmt: Format) -> ErrorSums:
        """Sums for one scale (the factor before the cast) and format; all zero for an empty histogram."""
        return self.sums_of(*scaled_cast(self._x32, scale, fmt))

    def sums_of(self, q32: Float32Array, beyond: BoolArray) -> ErrorSums:
        """Sums for any way to quantise; zeros are taken to stay zero.

        Args:
            q32: float32, what became of each of `values`.
            beyond: bool, which of them round beyond the largest finite value.
        """
        with np.errstate(all="ignore"):
            q = q32.astype(np.float64)
            err2 = (self._x - q) ** 2
        weight, low = self._weight, self._low
        return ErrorSums(
            n=self.n,
            n_nonzero=self.n_nonzero,
            n_underflow=int(self._count[q32 == 0].sum()),
            n_overflow=int(self._count[beyond].sum()),
            sum_x2=float(weight @ self._x2),
            sum_q2=float(weight @ (q * q)),
            sum_xq=float(weight @ (self._x * q)),
            sum_err2=float(weight @ err2),
            n_low=n_low_of(self.n_nonzero),
            low_sum_x2=float(low @ self._x2[: low.size]),
            low_sum_err2=float(low @ err2[: low.size]),
        )


def error_sums(
    values: Float32Array,
    counts: Int64Array,
    scale: np.float32,
    fmt: Format,
    order: Int64Array | None = None,
) -> ErrorSums:
    """Sums of one scale and format over a histogram; arguments as in `RankedHistogram`, which several scales share."""
    return RankedHistogram(values, counts, order).error_sums(scale, fmt)


def _low_weights(count: Int64Array, n_low: int) -> Float64Array:
    """Weights of the first bins so that they hold exactly `n_low` elements; the last bin may be taken in part."""
    if n_low == 0:
        return np.empty(0)
    running = np.cumsum(count)
    last = int(np.searchsorted(running, n_low))
    weights = count[: last + 1].astype(np.float64)
    weights[last] -= running[last] - n_low
    return weights


def mse(sums: ErrorSums) -> float | None:
    """Mean of (x - q)^2, in the square of the tensor's unit; None without elements."""
    return _ratio(sums.sum_err2, sums.n)


def sqnr_db(sums: ErrorSums) -> float | None:
    """10 log10(sum x^2 / sum (x - q)^2); None for an all-zero tensor and when there is no error (see `exact`)."""
    return _decibel(sums.sum_x2, sums.sum_err2)


def low_sqnr_db(sums: ErrorSums) -> float | None:
    """SQNR of the smallest 99 % of the non-zero values, None as in `sqnr_db`."""
    return _decibel(sums.low_sum_x2, sums.low_sum_err2)


def exact(sums: ErrorSums) -> bool:
    """True when quantisation changed nothing: then `sqnr_db` has no number."""
    return sums.sum_err2 == 0


def rel_l2(sums: ErrorSums) -> float | None:
    """sqrt(sum (x - q)^2 / sum x^2); None for an all-zero tensor."""
    square = _ratio(sums.sum_err2, sums.sum_x2)
    return None if square is None else math.sqrt(square)


def cosine(sums: ErrorSums) -> float | None:
    """sum xq / sqrt(sum x^2 sum q^2); None when x or q is all zero. Blind to a wrong scale: read it with `gain`."""
    return _ratio(sums.sum_xq, math.sqrt(sums.sum_x2 * sums.sum_q2))


def gain(sums: ErrorSums) -> float | None:
    """sum xq / sum x^2, 1 when right; None for an all-zero tensor."""
    return _ratio(sums.sum_xq, sums.sum_x2)


def underflow(sums: ErrorSums) -> float | None:
    """Share of the non-zero elements that became zero; None without any."""
    return _ratio(sums.n_underflow, sums.n_nonzero)


def underflow_all(sums: ErrorSums) -> float | None:
    """Elements that became zero as a share of all, as Transformer Engine reports it; None without elements."""
    return _ratio(sums.n_underflow, sums.n)


def overflow(sums: ErrorSums) -> float | None:
    """Share of the elements that round beyond the largest finite value; None without elements."""
    return _ratio(sums.n_overflow, sums.n)


def _ratio(numerator: float, denominator: float) -> float | None:
    # A scale so small that its inverse overflows makes q, and with it the sums, infinite: no ratio is left.
    if denominator == 0 or not math.isfinite(numerator) or not math.isfinite(denominator):
        return None
    return numerator / denominator


def _decibel(signal: float, noise: float) -> float | None:
    quotient = _ratio(signal, noise)
    return 10 * math.log10(quotient) if quotient else None
