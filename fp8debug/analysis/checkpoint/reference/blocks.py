"""Error sums of the blocks of a tensor, and the ratios that they give.

x is the reference, q this checkpoint; sums in float64 over the elements that are finite in both. A block's q is
factor x c, c the value of its code: so sum xq = f sum xc and sum q^2 = f^2 sum c^2, and every hypothesis that changes
factors alone follows from the sums over codes without reading a byte again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fp8debug import metrics
from fp8debug.formats import BoolArray
from fp8debug.metrics import ErrorSums, Float64Array


@dataclass(frozen=True, slots=True)
class BlockSums:
    """Sums of each block, float64, all of the shape of the grid (rows of blocks, columns of blocks)."""

    n: Float64Array
    """Elements that are finite in both."""
    n_nonfinite: Float64Array
    """Elements that are not, in one or the other."""
    sum_x2: Float64Array
    sum_q2: Float64Array
    sum_xq: Float64Array
    sum_err2: Float64Array
    """Of (x - q)^2."""

    def __add__(self, other: BlockSums) -> BlockSums:
        """Sums of two tensors of the same grid, or of two readings of parts of one."""
        return BlockSums(*(getattr(self, name) + getattr(other, name) for name in BlockSums.__slots__))

    @property
    def total(self) -> ErrorSums:
        """The sums of the whole tensor: `metrics.gain`, `metrics.sqnr_db` and the others take them."""
        return ErrorSums(
            n=int(self.n.sum()),
            sum_x2=float(self.sum_x2.sum()),
            sum_q2=float(self.sum_q2.sum()),
            sum_xq=float(self.sum_xq.sum()),
            sum_err2=float(self.sum_err2.sum()),
        )

    @property
    def gain(self) -> float | None:
        """Of the whole tensor, as in `metrics.gain`."""
        return metrics.gain(self.total)

    @property
    def sqnr_db(self) -> float | None:
        """Of the whole tensor, as in `metrics.sqnr_db`: None without an error too, see `is_exact`."""
        return metrics.sqnr_db(self.total)

    @property
    def rel_l2(self) -> float | None:
        """Of the whole tensor, as in `metrics.rel_l2`."""
        return metrics.rel_l2(self.total)

    @property
    def cosine(self) -> float | None:
        """Of the whole tensor, as in `metrics.cosine`."""
        return metrics.cosine(self.total)

    @property
    def is_exact(self) -> bool:
        """Whether all finite elements are equal."""
        return not np.any(self.sum_err2)

    @property
    def best_sqnr_db(self) -> float | None:
        """SQNR that is left when every block has the factor that leaves the least error; None without an error."""
        x2 = float(self.sum_x2.sum())
        left = self.sum_x2 - np.nan_to_num(_ratio(self.sum_xq**2, self.sum_q2))
        error = max(float(left.sum()), 0.0)
        return 10 * math.log10(x2 / error) if error and x2 else None

    def only(self, kept: BoolArray) -> BlockSums:
        """The same with all sums of the other blocks set to zero."""
        return BlockSums(*(np.where(kept, getattr(self, name), 0.0) for name in BlockSums.__slots__))

    def grouped(self, enough: int) -> BlockSums:
        """Neighbours in a row, then rows, added up until a full one has so many elements."""
        largest = max(1.0, float(self.n.max(initial=1)))
        rows, columns = self.n.shape
        across = max(1, min(columns, math.ceil(enough / largest)))
        down = math.ceil(enough / (largest * across))
        at_columns, at_rows = np.arange(0, columns, across), np.arange(0, rows, down)
        return BlockSums(
            *(
                np.add.reduceat(np.add.reduceat(getattr(self, name), at_columns, axis=1), at_rows, axis=0)
                for name in BlockSums.__slots__
            )
        )

    def block_gain(self) -> Float64Array:
        """sum xq / sum x^2 of each block; NaN where x is all zero."""
        return _ratio(self.sum_xq, self.sum_x2)

    def block_sqnr_db(self) -> Float64Array:
        """10 log10(sum x^2 / sum (x - q)^2) of each block; NaN where x is all zero, inf where there is no error."""
        with np.errstate(divide="ignore"):
            return -10 * np.log10(_ratio(self.sum_err2, self.sum_x2))


@dataclass(frozen=True, slots=True)
class CodeSums:
    """Sums over codes, of blocks that have one factor each; float64, of the shape of the grid."""

    lines: npt.NDArray[np.intp]
    """First line of each row of blocks."""
    width: int
    """Columns of a block; the last one may have fewer."""
    is_sample: bool
    """Whether rows were left out, evenly, since there are too many blocks to hold."""
    n: Float64Array
    n_nonfinite: Float64Array
    sum_x2: Float64Array
    sum_c2: Float64Array
    """c: value of a code with no scale applied."""
    sum_xc: Float64Array

    def times(self, factors: Float64Array | float) -> BlockSums:
        """The sums that other factors give.

        Args:
            factors: broadcastable to the grid; blocks where it is not finite count as not finite.
        """
        given = np.asarray(factors, np.float64)
        finite = np.broadcast_to(np.isfinite(given), self.n.shape)
        factor = np.where(finite, given, 0.0)
        sum_xq, sum_q2 = factor * self.sum_xc, factor * factor * self.sum_c2
        sum_x2 = np.where(finite, self.sum_x2, 0.0)
        return BlockSums(
            n=np.where(finite, self.n, 0.0),
            n_nonfinite=np.where(finite, self.n_nonfinite, self.n + self.n_nonfinite),
            sum_x2=sum_x2,
            sum_q2=sum_q2,
            sum_xq=sum_xq,
            # Rounding of the sums may leave less than nothing where there is no error.
            sum_err2=np.maximum(sum_x2 - 2 * sum_xq + sum_q2, 0.0),
        )

    def best_factors(self) -> Float64Array:
        """The factor of each block that leaves the least error, sum xc / sum c^2; NaN where all codes are zero."""
        return _ratio(self.sum_xc, self.sum_c2)


def block_sums_of(a: Float64Array, b: Float64Array, width: int) -> Float64Array:
    """Sums of a x b over `width` columns each, (lines, columns) to (lines, ceil(columns / width))."""
    lines, columns = a.shape
    whole = columns // width * width
    shape = (lines, whole // width, width)
    sums: Float64Array = np.einsum("lbw,lbw->lb", a[:, :whole].reshape(shape), b[:, :whole].reshape(shape))
    if whole == columns:
        return sums
    return np.concatenate([sums, np.einsum("lw,lw->l", a[:, whole:], b[:, whole:])[:, None]], axis=1)


def _ratio(numerator: Float64Array, denominator: Float64Array) -> Float64Array:
    quotient = np.full(numerator.shape, np.nan)
    np.divide(numerator, denominator, out=quotient, where=denominator > 0)
    return quotient
