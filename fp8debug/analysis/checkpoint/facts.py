"""What one pass over the bytes tells of each tensor: numbers alone, judged elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fp8debug.formats import Float32Array

Int64Array = npt.NDArray[np.int64]
KEPT_SCALES = 256
"""Numbers of a scale tensor that are kept: a checkpoint may have 100,000 such tensors, or one of a gigabyte."""


@dataclass(frozen=True, slots=True)
class LineRanges:
    """Lines (all axes but the last) that hold something, as ranges."""

    n: int
    """Such lines."""
    ranges: tuple[tuple[int, int], ...]
    """First and last (inclusive), ascending; the first thousand ranges."""


@dataclass(frozen=True, slots=True)
class CodeFacts:
    """Codes of one quantised tensor. All but the histogram are of every code."""

    n: int
    n_nan: int
    """Codes that mean NaN (or infinity, in formats that have one)."""
    nan_lines: LineRanges
    n_zero: int
    n_largest: int
    """Codes of the format's largest finite magnitude."""
    largest: float
    """Largest finite magnitude of a code, no scale applied; 0: none."""
    histogram: Int64Array
    """int64 (2^bits,): how often each code occurs in the sample."""
    n_sampled: int
    """Codes in the histogram: all of a small tensor, evenly spaced bands of a large one."""
    n_blocks: int
    """Blocks that have a scale of their own; 1 where the scale is one number, 0 where there is none."""
    block_histogram: Int64Array | None
    """int64 (2^bits / 2,): how many blocks have each code as their largest, sign off, NaN not counted; None: the scale
    is one number, or there is none. Blocks are what share a number: also lines, columns, matrices of a stack. Of more
    than 65,536 an evenly spaced part."""
    n_lost: int
    """Blocks (or the tensor) that hold codes other than zero under a scale of zero, or what divides by infinity."""
    rms: float
    """Root mean square of the dequantised values of the sample (finite ones, stored scales applied); 0 where there are
    none, of raw code values where there is no scale, NaN where the shape of a scale does not fit."""
    rms_codes: float
    """The same with no scale applied."""


@dataclass(frozen=True, slots=True)
class ScaleFacts:
    """Numbers of one scale tensor, as stored."""

    values: Float32Array | None
    """All of them, in the stored shape (swizzled ones as the grid); None: more than KEPT_SCALES, which
    `grids.scale_numbers` reads again."""
    n: int
    n_nan: int
    n_inf: int
    n_zero: int
    n_negative: int
    n_subnormal: int
    """Non-zero magnitudes below 2^-126; scales in E8M0 of 2^-127 are not counted."""
    n_one: int
    """Exactly 1.0."""
    smallest: float | None
    """Of the finite ones; None: there are none."""
    median: float | None
    largest: float | None
    are_powers_of_two: bool
    """Whether all finite, non-zero ones are, and there is one."""
    odd_at: tuple[tuple[int, ...], ...]
    """Where the first few stand that are NaN, infinite, zero or negative: positions in the stored shape, of swizzled
    grids in the grid."""


@dataclass(frozen=True, slots=True)
class PlainFacts:
    """A tensor in high precision."""

    n: int
    n_nan: int
    n_inf: int
    nonfinite_lines: LineRanges
    amax: float
    """Largest finite magnitude."""
    rms: float
    """Of the finite values of a sample."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Of all tensors, by their names."""

    codes: Mapping[str, CodeFacts]
    scales: Mapping[str, ScaleFacts]
    """Those of codes and all others."""
    plain: Mapping[str, PlainFacts]
