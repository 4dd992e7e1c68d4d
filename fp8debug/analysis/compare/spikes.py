"""Steps at which a loss or a gradient norm leaves its own band: when, how high, how long, and whether both runs do.

The band of a step comes from the steps before it alone, so that what follows a fault cannot hide it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fp8debug.analysis.compare.curve import Curve, Floats, Steps

WINDOW = 64
"""Steps before one that make its band."""
MIN_HISTORY = 8
"""With fewer steps before it there is no band; a value is then held against `SHORT_RATIO` times their median."""
SHORT_RATIO = 3.0
REACH = 6.0
"""Half-width of the band in robust standard deviations; wider while there are few steps."""
MIN_RISE = {"loss": 1.03, "grad_norm": 1.5}
"""What is less above the median is no spike however quiet the series is."""
CALM = 3
"""Steps in a row inside the band that end a spike."""
SHARED = 0.5
"""A spike is only the run's own where the baseline rises by less than this share of its own band."""


@dataclass(frozen=True, slots=True)
class Spike:
    """A stretch of steps above the band, or without a finite value."""

    series: str
    """loss | grad_norm"""
    first_step: int
    value: float
    """At the first step."""
    peak_step: int
    peak: float | None
    """Highest finite value; None without any."""
    excess: float
    """Largest distance from the median before, in half-widths of the band; infinite with a value that is not finite."""
    n_nonfinite: int
    """Its steps without a finite value."""
    before: float | None
    """Median of the steps before; None at the first step."""
    limit: float | None
    """End of the band that it left."""
    recovered_step: int | None
    """First step back inside the band; None: it never came back."""
    n_steps: int
    """Steps from the first one to recovery, or to the end."""
    is_unique: bool | None
    """Whether the other curve has none near these steps; None: it has nothing to compare with there."""

    @property
    def ratio(self) -> float | None:
        """Value at the first step over the median before."""
        if self.before is None or self.before <= 0 or not math.isfinite(self.value):
            return None
        return self.value / self.before

    @property
    def height(self) -> float | None:
        """Peak over the median before."""
        if self.before is None or self.before <= 0 or self.peak is None:
            return None
        return self.peak / self.before


@dataclass(frozen=True, slots=True, eq=False)
class Band:
    """Per step: what came before, and how far the value lies from it, in half-widths of the band."""

    steps: Steps
    values: Floats
    before: Floats
    limit: Floats
    excess: Floats
    """Above 1: outside. Infinite where the value is not finite."""


def band_of(curve: Curve, series: str) -> Band | None:
    """The band of a series; None where it was not recorded."""
    values = curve.loss if series == "loss" else curve.grad_norm
    if values is None:
        return None
    steps = curve.steps
    if series != "loss" and curve.grad_norm_given is not None:
        steps, values = steps[curve.grad_norm_given], values[curve.grad_norm_given]
    if not values.size:
        return None
    before, limit = _bands(values, series)
    with np.errstate(invalid="ignore", divide="ignore"):
        excess = (_shape(values, series) - _shape(before, series)) / (_shape(limit, series) - _shape(before, series))
    excess = np.where(np.isnan(before), 0.0, np.nan_to_num(excess, nan=0.0, posinf=0.0, neginf=0.0))
    return Band(steps, values, before, limit, np.where(np.isfinite(values), excess, np.inf))


def find_spikes(band: Band, series: str, other: Band | None) -> tuple[Spike, ...]:
    """All spikes of one series, in order; `other` is the same series of the curve that it is compared with."""
    return tuple(_spikes(band, series, other))


def first_anomaly(spikes: Sequence[Spike]) -> Spike | None:
    """The earliest one that the other curve does not share; of several at one step the loss, and NaN before all."""
    own = [spike for spike in spikes if spike.is_unique is not False]
    return min(
        own, key=lambda spike: (spike.first_step, math.isfinite(spike.value), spike.series != "loss"), default=None
    )


def _spikes(band: Band, series: str, other: Band | None) -> Iterator[Spike]:
    outside = band.excess > 1
    place = 0
    while place < band.values.size:
        if not outside[place]:
            place += 1
            continue
        stop = _recovery(band, place)
        values, excess = band.values[place:stop], band.excess[place:stop]
        finite = np.isfinite(values)
        peak = int(np.argmax(np.where(finite, values, -np.inf)))
        recovered = int(band.steps[stop]) if stop < band.steps.size else None
        yield Spike(
            series=series,
            first_step=int(band.steps[place]),
            value=float(values[0]),
            peak_step=int(band.steps[place + peak]),
            peak=_known(values[peak]),
            excess=float(excess.max()),
            n_nonfinite=int((~finite).sum()),
            before=_known(band.before[place]),
            limit=_known(band.limit[place]),
            recovered_step=recovered,
            n_steps=(recovered if recovered is not None else int(band.steps[-1]) + 1) - int(band.steps[place]),
            is_unique=_is_unique(band, place, stop, other),
        )
        place = stop


def _recovery(band: Band, start: int) -> int:
    """Place of the first of `CALM` steps inside the band that was left, which stays as it was; else the end."""
    limit = band.limit[start]
    calm = np.isfinite(band.values[start:]) & (np.isnan(limit) | (band.values[start:] <= limit))
    n_calm = 0
    for place in range(1, calm.size):
        n_calm = n_calm + 1 if calm[place] else 0
        if n_calm == CALM:
            return start + place - CALM + 1
    return int(start + calm.size - n_calm)


def _is_unique(band: Band, start: int, stop: int, other: Band | None) -> bool | None:
    if other is None:
        return None
    spacing = int(np.median(np.diff(band.steps))) if band.steps.size > 1 else 1
    reach = min(10, max(2, band.steps.size // 100)) * spacing
    last_place = min(stop, start + WINDOW) - 1
    near = (other.steps >= band.steps[start] - reach) & (other.steps <= band.steps[last_place] + reach)
    return bool((other.excess[near] < SHARED).all()) if near.any() else None


def _bands(values: Floats, series: str) -> tuple[Floats, Floats]:
    """Median before each step, and the end of its band; NaN where nothing came before."""
    shaped = _filled(_shape(values, series))
    before, reach = np.full(values.size, np.nan), np.full(values.size, np.nan)
    for place in range(1, min(values.size, WINDOW)):
        before[place : place + 1], reach[place : place + 1] = _band(shaped[None, :place], series)
    if values.size > WINDOW:
        windows = np.lib.stride_tricks.sliding_window_view(shaped[:-1], WINDOW)
        before[WINDOW:], reach[WINDOW:] = _band(windows, series)
    return _unshape(before, series), _unshape(before + reach, series)


def _band(windows: np.ndarray[tuple[int, int], np.dtype[np.float64]], series: str) -> tuple[Floats, Floats]:
    n = windows.shape[1]
    middle = np.median(windows, axis=1)
    least = np.log(MIN_RISE[series]) if series != "loss" else (MIN_RISE[series] - 1) * np.abs(middle)
    if n < MIN_HISTORY:
        rise = np.log(SHORT_RATIO) if series != "loss" else (SHORT_RATIO - 1) * np.abs(middle)
        return middle, np.broadcast_to(rise, middle.shape)
    deviation = 1.4826 * np.median(np.abs(windows - middle[:, None]), axis=1)
    return middle, np.maximum(REACH * (1 + MIN_HISTORY / n) * deviation, least)


def _shape(values: Floats, series: str) -> Floats:
    """Norms are compared by ratio, losses by difference."""
    if series == "loss":
        return values
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(values > 0, np.log(values), np.nan)


def _unshape(values: Floats, series: str) -> Floats:
    return values if series == "loss" else np.exp(values)


def _filled(values: Floats) -> Floats:
    """The last finite value in the place of those that are not, so that they make no band."""
    finite = np.isfinite(values)
    if finite.all() or not finite.any():
        return values
    last = np.maximum.accumulate(np.where(finite, np.arange(values.size), 0))
    first = int(np.argmax(finite))
    return np.where(np.arange(values.size) < first, values[first], values[last])


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
