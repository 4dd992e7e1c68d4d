"""A hypothesis tried on the evidence: how much error it takes away, and whether what is left is only rounding.

A false explanation is worse than none. A reading is accepted when it takes nine tenths of the error beyond rounding
away and brings nearly every cell (block, line) to a gain of 1, each as closely as its number of elements can tell. One
that is chosen from many nearby numbers has to give the very codes that are stored, too, where any factor does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fp8debug.analysis.checkpoint.reference.compared import Hypothesis
from fp8debug.analysis.checkpoint.reference.hypotheses.cells import ratio
from fp8debug.analysis.checkpoint.reference.hypotheses.evidence import Evidence
from fp8debug.analysis.checkpoint.reference.hypotheses.sums import applied, dot, square_sum
from fp8debug.formats import Float32Array, Format

LEAST_EXPLAINED = 0.9
_LEAST_RIGHT_CELLS = 0.8
_THINNED_ELEMENTS = 1 << 17
_TELLING = 0.9
"""Share of equal codes, with the best factor, from which on codes tell whether another factor is the right one."""
_SAME_CODES = 0.97
"""Share of equal codes that proves a reading by itself."""
_AS_MANY_CODES = 0.02
"""Values midway between two codes go by how a writer divides: of BF16 weights there are that many."""
_NEAR = 2e-3
_OF_ROUNDED = 0.1
"""Of rounding's error, what one factor leaves where the reference holds these very codes."""
_OF_NORMAL = 3.0
"""n sum(x^4) / sum(x^2)^2 of normal values."""
_AS_GOOD_AS_FITTED = 1.5
"""What a right reading leaves, at most, over what the best single factor leaves of the wrong one."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Another way to read a tensor: codes x factors."""

    name: str
    message: str
    factors: Float32Array
    """Broadcastable to the sampled lines."""
    codes: Float32Array | None = None
    """Values of the codes; None: as they are."""
    fmt: Format | None = None
    """Format of these codes; None: as it is."""
    freedom: int = 0
    """Numbers that were fitted to the reference."""
    factor: float | None = None
    """By how much values are too large; None: seen from the values."""
    needs_codes: bool = False
    """Whether it is one of so many that agreement of sums proves little: it is to give the very codes, where these were
    made from this reference, and otherwise to agree to one part in 500."""
    rank: int = 0
    """See `Trial`."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A hypothesis that has been tried and accepted."""

    hypothesis: Hypothesis
    freedom: int
    same_codes: float
    """Share of the codes that its factors give again from the reference."""
    rank: int = 0
    """0, 1: less likely than another that explains as much, 2: only told where there is no other."""


def try_reading(evidence: Evidence, reading: Reading) -> Trial | None:
    """Whether a reading explains the error; None: it does not."""
    codes = evidence.codes if reading.codes is None else reading.codes
    if not _may_explain(evidence, codes, reading.factors):
        return None
    values = applied(codes, reading.factors)
    left = evidence.error_of(values)
    explained = explained_by(evidence, left)
    if explained < LEAST_EXPLAINED:
        return None
    same = evidence.same_codes(reading.factors, codes, reading.fmt)
    if same < _SAME_CODES and not _is_right(evidence, values, left, reading):
        return None
    if reading.needs_codes and not _gives_codes(evidence, same, reading):
        return None
    factor = reading.factor or constant_ratio(evidence.values, values)
    return Trial(Hypothesis(reading.name, reading.message, explained, factor), reading.freedom, same, reading.rank)


def _is_right(evidence: Evidence, values: Float32Array, left: float, reading: Reading) -> bool:
    if reading.freedom == 0 and left > _AS_GOOD_AS_FITTED * max(evidence.fitted_error, evidence.rounding_error):
        return False
    return _is_right_everywhere(evidence, values, reading.fmt or evidence.fmt)


def _gives_codes(evidence: Evidence, same: float, reading: Reading) -> bool:
    # Of a reference that is rounded itself, factors some percent off give the same codes.
    is_rounded = evidence.fitted_error < _OF_ROUNDED * evidence.rounding_error
    if evidence.most_same_codes > _TELLING:
        gives = same > evidence.most_same_codes - _AS_MANY_CODES
        return gives and (not is_rounded or _is_as_large(evidence, reading))
    return _is_as_large(evidence, reading)


def _is_as_large(evidence: Evidence, reading: Reading) -> bool:
    """Whether the best factor for what is read so is 1, but for one part in 500."""
    codes = evidence.codes if reading.codes is None else reading.codes
    values = applied(codes, reading.factors)
    power = square_sum(values)
    return power > 0 and abs(dot(evidence.x, values) / power - 1) < _NEAR


def _may_explain(evidence: Evidence, codes: Float32Array, factors: Float32Array) -> bool:
    """Whether it does on a part of the lines: most readings fail there already."""
    every = evidence.n // _THINNED_ELEMENTS
    if every < 4:
        return True
    part = np.broadcast_to(factors, evidence.x.shape)[::every]
    x = evidence.x[::every]
    left = square_sum(x - applied(codes[::every], part))
    return left < 0.5 * square_sum(x - evidence.values[::every])


def explained_by(evidence: Evidence, left: float) -> float:
    """Share of the error beyond rounding that is gone when so much is left, 0 to 1."""
    excess = evidence.error - evidence.rounding_error
    if excess <= 0:
        return 0.0
    return float(np.clip((evidence.error - max(left, evidence.rounding_error)) / excess, 0, 1))


def _is_right_everywhere(evidence: Evidence, values: Float32Array, fmt: Format | None) -> bool:
    cells = evidence.check_cells
    squares = np.square(evidence.x)
    sum_x2, sum_x4 = cells.sum(squares), cells.dot(squares, squares)
    sum_xq = cells.dot(evidence.x, values)
    # Where one side is the other and noise, the power of the other is what the product is to be held against.
    off = np.fmin(np.abs(ratio(sum_xq, sum_x2) - 1), np.abs(ratio(sum_xq, cells.dot(values, values)) - 1))
    # Errors are relative: those elements count that hold a cell's power, which are few where some columns stand out.
    with np.errstate(all="ignore"):
        n = np.minimum(cells.sum(np.ones_like(evidence.x)), _OF_NORMAL * sum_x2**2 / sum_x4)
        noise = np.sqrt(np.minimum(cells.dot(evidence.x - values, evidence.x - values) / sum_x2, 1) / n)
    filled = np.isfinite(off) & (sum_x2 > 1e-4 * sum_x2.mean())
    if not filled.any():
        return False
    right = off[filled] <= tolerance(fmt) + 3 * noise[filled]
    return bool(
        right.mean() >= _LEAST_RIGHT_CELLS and np.median(off[filled]) <= 2 * tolerance(fmt) + np.median(noise[filled])
    )


def tolerance(fmt: Format | None) -> float:
    """How far from 1 the gain of many elements may be by rounding alone."""
    return 1e-4 if fmt is None else fmt.max_gain_error / 8


def constant_ratio(values: Float32Array, right: Float32Array) -> float | None:
    """By how much values are too large, where that is one number for nearly all of them."""
    both = (right != 0) & (values != 0)
    if np.count_nonzero(both) < 0.5 * max(1, int(np.count_nonzero(right))):
        return None
    quotients = values[both].astype(np.float64) / right[both]
    low, middle, high = np.quantile(quotients, [0.01, 0.5, 0.99])
    if middle == 0 or abs(high - low) > 1e-3 * abs(middle):
        return None
    return float(middle) if middle != 1 else None


def fitted_share(evidence: Evidence) -> float:
    """What the best single factor explains."""
    return explained_by(evidence, evidence.fitted_error)
