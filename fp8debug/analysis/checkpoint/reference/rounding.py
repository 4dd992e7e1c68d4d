"""What rounding alone does: bounds that hold for any values, and what one rounding with the stored scales gives."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fp8debug.analysis.checkpoint.records import Quantised, Stored
from fp8debug.analysis.checkpoint.reference.lines import QuantisedLines, lines_of
from fp8debug.analysis.checkpoint.reference.pair import Pair
from fp8debug.formats import FORMATS, Format, fake_quantize

_SIGNIFICAND_BITS = {"F64": 53, "F32": 24, "F16": 11, "BF16": 8}
_MIN_NORMAL = {"F64": 2.0**-1022, "F32": 2.0**-126, "F16": 2.0**-14, "BF16": 2.0**-126}
_SAMPLE = 1 << 18
_SAMPLE_BANDS = 8


@dataclass(frozen=True, slots=True)
class Precision:
    """What rounding to the number format of a tensor does at worst."""

    name: str
    error: float
    """Largest relative error of a value in the normal range, and the most that it moves a gain."""
    healthy_db: float
    """SQNR of bell-shaped tensors at the best scale."""
    min_normal: float
    """In units of codes."""
    clips: float
    """Relative error of values that the writer may have clipped on purpose: of block maxima, where scales are powers
    of two that were rounded down."""

    flushes: float
    """Largest error, relative to the root mean square, of values below the normal range where that is not: half the
    distance of subnormals over `min_normal`."""

    @property
    def block_error(self) -> float:
        """Largest error of a block whose maximum dominates it."""
        return max(self.error, self.clips)

    @property
    def most(self) -> float:
        """Largest error of a block, whatever is in it, whose root mean square is in the normal range."""
        return self.error + self.clips + self.flushes


def precision_of(tensor: Quantised | Stored) -> Precision:
    """Of a tensor's values as they are stored."""
    if isinstance(tensor, Quantised):
        fmt = FORMATS[tensor.fmt]
        flushes = 2.0 ** -(fmt.mantissa_bits + 1)
        return Precision(
            fmt.name, fmt.max_gain_error, fmt.baseline_sqnr_db, fmt.min_normal, _clipped(tensor, fmt), flushes
        )
    bits = _SIGNIFICAND_BITS[tensor.dtype]
    error = 1 / (2**bits + 1)
    # Rounding errors of evenly spread significands: 7.4 dB above those of the worst one, as BF16's 55.6 to 48.2.
    return Precision(tensor.dtype, error, decibel(error) + 7.4, _MIN_NORMAL[tensor.dtype], 0.0, 2.0**-bits)


def _clipped(tensor: Quantised, fmt: Format) -> float:
    scale = tensor.grid_scale
    if scale is None or scale.encoding != "E8M0":
        return 0.0
    return 1 - fmt.max / math.ldexp(1.0, math.frexp(fmt.max)[1])


def decibel(error: float) -> float:
    """SQNR in dB of a relative error."""
    return -20 * math.log10(error)


def of_both_db(one: float, other: float) -> float:
    """SQNR in dB of two independent errors with these SQNRs together."""
    return -10 * math.log10(10 ** (-one / 10) + 10 ** (-other / 10))


@dataclass(frozen=True, slots=True)
class OneRounding:
    """The reference rounded once with the stored scales, beside what is stored, on the same sample of lines."""

    sqnr_db: float | None
    """Of one rounding; None: no error."""
    stored_sqnr_db: float | None
    """Of what is stored, on the same lines."""
    nearest: float
    """Share of the non-zero values whose stored code is the nearest one."""


def one_rounding(pair: Pair) -> OneRounding | None:
    """What a writer gets who rounds the reference to the stored scales; None: these leave nothing to measure."""
    ours = lines_of(pair.store, pair.tensor)
    if not isinstance(ours, QuantisedLines):
        return None
    sums = np.zeros(3)
    n = n_nearest = 0
    for first, last in sample_of(pair.lines, pair.length):
        x, codes, factors = pair.reference_lines.values(first, last), ours.codes(first, last), ours.factors(first, last)
        with np.errstate(all="ignore"):
            rounded = fake_quantize(x / factors, FORMATS[pair.quantised.fmt])
            once, stored = (rounded * factors).astype(np.float64), (codes * factors).astype(np.float64)
        kept = np.isfinite(once) & np.isfinite(stored) & np.isfinite(x) & (x != 0)
        exact = x.astype(np.float64)[kept]
        sums += [np.sum(exact**2), np.sum((exact - once[kept]) ** 2), np.sum((exact - stored[kept]) ** 2)]
        n += int(kept.sum())
        n_nearest += int((rounded[kept] == codes[kept]).sum())
    if n == 0:
        return None
    x2, error, stored_error = (float(one) for one in sums)
    return OneRounding(_ratio_db(x2, error), _ratio_db(x2, stored_error), n_nearest / n)


def _ratio_db(signal: float, noise: float) -> float | None:
    return 10 * math.log10(signal / noise) if signal and noise else None


def sample_of(lines: int, length: int) -> Iterator[tuple[int, int]]:
    """Bands of lines, evenly spaced: all of a small tensor."""
    if lines * length <= _SAMPLE:
        if lines:
            yield 0, lines
        return
    step = max(1, _SAMPLE // _SAMPLE_BANDS // max(1, length))
    firsts = np.linspace(0, max(0, lines - step), min(_SAMPLE_BANDS, max(1, lines // step)))
    for first in np.unique(firsts.astype(np.int64)):
        yield int(first), min(lines, int(first) + step)
