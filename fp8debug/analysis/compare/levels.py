"""The level of a noisy series, how sure it is, and whether it is rising.

Neighbouring losses are not independent (the same data, a slow optimizer), so errors come from the spread of the means
of blocks of neighbours, never from the spread of single steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fp8debug.analysis.compare.curve import Floats

MIN_VALUES = 16
"""Fewer values give no error: blocks of 4, and at least 4 of them."""
MAX_BLOCKS = 16
_BLOCK = 4
_MAD = 1.482602218505602
"""Standard deviation of a normal distribution over its median absolute deviation."""
_OUTLIER = 6.0
_DISAGREES = 2.5
"""Standard errors between two neighbouring stretches from which the series is not level; more where blocks are few."""
_STEEP = 5.0
"""Standard deviations about a line that it must rise by to be more than noise with a memory."""
_Z95, _Z99 = 1.959963984540054, 2.5758293035489004


@dataclass(frozen=True, slots=True)
class Level:
    """The mean of a series over some of its steps, with the band in which 95 % of such means lie."""

    value: float
    error: float | None
    """Standard error; None: too few values."""
    low: float | None
    high: float | None
    n: int

    @property
    def is_measurable(self) -> bool:
        """Whether zero lies outside the band."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


@dataclass(frozen=True, slots=True)
class Slope:
    """A straight line through a series, per unit of its abscissa, with the band of 99 %."""

    value: float
    low: float
    high: float
    start: float
    """The line at the first step."""
    end: float
    """The line at the last step."""

    @property
    def is_measurable(self) -> bool:
        """Whether zero lies outside the band."""
        return self.low > 0 or self.high < 0


def level(values: Floats) -> Level:
    """Mean and band of a series; where it clearly rises or falls, the band comes from what scatters about a line."""
    mean = float(values.mean())
    if values.size < MIN_VALUES:
        return Level(mean, None, None, None, values.size)
    places = np.arange(values.size, dtype=np.float64)
    line = slope(places, values)
    if line is not None and line.is_measurable:
        rest = values - line.value * (places - places.mean())
        # Noise with a memory looks like a slope now and then, but not like one far beyond its own spread.
        if abs(line.end - line.start) > _STEEP * rest.std():
            values = rest
    means = np.array([block.mean() for block in _blocks(values)])
    error = float(means.std(ddof=1) / math.sqrt(means.size)) * _widening(values, means)
    reach = _student(_Z95, means.size - 1) * error
    return Level(mean, error, mean - reach, mean + reach, values.size)


def last_level(values: Floats, least: int) -> Level:
    """Level of the longest end of a series that looks level: `least` values, doubled while the added ones agree.

    With more values the band is narrower, and where the series still falls the end is what counts.
    """
    size = min(values.size, max(least, MIN_VALUES))
    found = level(values[-size:])
    while size < values.size:
        added = values[max(0, values.size - 2 * size) : values.size - size]
        before = level(added)
        if before.error is None or found.error is None:
            break
        limit = _student(_DISAGREES, min(_n_blocks(before.n), _n_blocks(found.n)) - 1)
        if abs(before.value - found.value) > limit * math.hypot(before.error, found.error):
            break
        size += added.size
        found = level(values[-size:])
    return found


def slope(places: Floats, values: Floats) -> Slope | None:
    """A line through the means of blocks (ordinary least squares); None with too few values."""
    if values.size < MIN_VALUES:
        return None
    x = np.array([block.mean() for block in _blocks(places)])
    y = np.array([block.mean() for block in _blocks(values)])
    spread = x - x.mean()
    steep = float((spread * y).sum() / (spread * spread).sum())
    rest = y - y.mean() - steep * spread
    freedom = x.size - 2
    error = math.sqrt(float((rest * rest).sum()) / freedom / float((spread * spread).sum()))
    error *= _widening(values - steep * (places - places.mean()), rest)
    reach = _student(_Z99, freedom) * error
    at = [float(y.mean() + steep * (place - x.mean())) for place in (places[0], places[-1])]
    return Slope(steep, steep - reach, steep + reach, *at)


def without_outliers(values: Floats, window: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """True where a value is within 6 robust deviations of the median of its block of `window`: a spike is no level."""
    kept = np.ones(values.size, dtype=bool)
    edges = range(0, values.size, window)
    for start in edges:
        # The last, shorter block borrows from the one before.
        stop = min(values.size, start + window)
        block = values[max(0, stop - window) : stop]
        middle = np.median(block)
        deviation = _MAD * float(np.median(np.abs(block - middle)))
        if deviation > 0:
            kept[start:stop] = np.abs(values[start:stop] - middle) <= _OUTLIER * deviation
    return kept


def rolling_mean(values: Floats, window: int) -> Floats:
    """Mean of the `window` values around each, fewer at both ends."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    places = np.arange(values.size)
    first = np.maximum(0, places - window // 2)
    last = np.minimum(values.size, places + (window - 1) // 2 + 1)
    means: Floats = (sums[last] - sums[first]) / (last - first)
    return means


def robust_deviation(values: Floats) -> float:
    """1.4826 times the median absolute deviation: the standard deviation, were they normal without outliers."""
    return _MAD * float(np.median(np.abs(values - np.median(values))))


def _widening(values: Floats, means: Floats) -> float:
    """Factor (at least 1) on an error from `means` of blocks that are short beside the memory of `values`.

    For a memory that fades by the factor r a step the variance of a mean is (1 + r) / (1 - r) / n times that of a
    value; r is the correlation of neighbours, raised by what it is too low in few values (Marriott and Pope 1954).
    """
    rest = values - values.mean()
    variance = float((rest * rest).mean())
    of_means = float(means.var(ddof=1)) / means.size
    if variance == 0 or of_means == 0:
        return 1.0
    r = float((rest[1:] * rest[:-1]).mean()) / variance
    r = min(0.98, r + (1 + 3 * r) / values.size)
    return max(1.0, math.sqrt(variance * (1 + r) / (1 - r) / values.size / of_means)) if r > 0 else 1.0


def _blocks(values: Floats) -> list[Floats]:
    return np.array_split(values, _n_blocks(values.size))


def _n_blocks(n_values: int) -> int:
    return min(MAX_BLOCKS, n_values // _BLOCK)


def _student(z: float, freedom: int) -> float:
    """Quantile of Student's t from that of the normal distribution (Abramowitz and Stegun 26.7.5)."""
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
