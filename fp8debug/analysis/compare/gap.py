"""How far one loss curve lies above another at the same steps, how sure that is, and where it is going."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fp8debug.analysis.compare.curve import Curve, Floats, Steps, matched
from fp8debug.analysis.compare.levels import (
    Level,
    Slope,
    last_level,
    rolling_mean,
    slope,
    without_outliers,
)

SMOOTHED_SHARE = 0.05
MIN_WINDOW = 8
OUTLIER_WINDOW = 48
"""Steps among which a spike is told from the level; a shorter stretch could be half of it."""
MAX_POINTS = 60
USUAL_ABSOLUTE = 0.01
USUAL_RELATIVE = 0.0025
"""What practice accepts of a gap that stays: 0.01 (marin issue 7298, Megatron-LM issue 1152), 0.25 % (DeepSeek-V3)."""
RELEVANT_CHANGE = 0.1
"""A trend that moves the gap by less than this share of itself over half of the run is none."""
_SURE, _SURE_WITH_TREND = 3.5, 1.5
"""Standard errors by which the gap of the first quarter must exceed the last one, to have been a transient; fewer where
it is still seen to shrink."""


@dataclass(frozen=True, slots=True)
class GapPoint:
    """The smoothed gap around one step."""

    step: int
    absolute: float
    relative: float | None


@dataclass(frozen=True, slots=True)
class Gap:
    """Loss of the run minus loss of the baseline over the steps both have; positive: the run is worse.

    `absolute` is the mean over the last `n_level` matched steps, over which the gap is level, single spikes left out;
    `low` and `high` are its 95 % band from the means of blocks. `relative` is the same over the baseline's loss there.
    """

    n_matched: int
    """Steps that both have."""
    n_nonfinite: int
    """Those of them at which one of the losses is NaN or infinite: in no mean."""
    first_step: int | None
    last_step: int | None
    """First and last step with both losses finite."""
    window: int
    """Steps that the smoothed points are means of."""
    n_level: int
    absolute: float | None
    low: float | None
    high: float | None
    relative: float | None
    relative_low: float | None
    relative_high: float | None
    baseline_loss: float | None
    """Mean loss of the baseline over the same last steps."""
    early: float | None
    """Mean over the first steps over which it is level, a quarter of all at most; low is the end of its 95 % band."""
    early_low: float | None
    kind: str
    """unknown | none | transient | persistent | growing"""
    trend: str
    """unknown | shrinking | flat | growing: of the magnitude, over the second half"""
    slope: float | None
    """Per 1,000 steps, over the second half; low and high are its 99 % band."""
    slope_low: float | None
    slope_high: float | None
    onset_step: int | None
    """First step since which the smoothed gap stays above what practice accepts; None: it does not at the end."""
    is_from_start: bool
    """Whether that is in the first steps."""
    largest_difference: float | None
    """Largest magnitude of a single step's difference: noise and spikes, no gap."""
    points: tuple[GapPoint, ...]

    @property
    def is_usual(self) -> bool:
        """Whether it may be what practice accepts: 0.01, or 0.25 % of the loss where that is more; unknown: yes."""
        return self.low is None or self.low <= self.usual_limit

    @property
    def usual_limit(self) -> float:
        """That limit, in units of the loss."""
        return max(USUAL_ABSOLUTE, USUAL_RELATIVE * abs(self.baseline_loss or 0.0))

    @property
    def is_measurable(self) -> bool:
        """Whether zero lies outside the band of the last steps."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def gap_of(baseline: Curve, other: Curve) -> Gap:
    """The gap of two curves at matched steps."""
    ours, theirs = matched(baseline, other)
    base = baseline.loss[ours]
    with np.errstate(invalid="ignore"):  # infinity minus infinity
        differences = other.loss[theirs] - base
    finite = np.isfinite(differences)
    n_matched, n_nonfinite = ours.size, int((~finite).sum())
    steps, base, differences = baseline.steps[ours][finite], base[finite], differences[finite]
    if not differences.size:
        return _nothing(n_matched, n_nonfinite)
    largest = float(np.abs(differences).max())
    span = (int(steps[0]), int(steps[-1]))
    window = min(differences.size, max(MIN_WINDOW, math.ceil(SMOOTHED_SHARE * differences.size)))
    kept = without_outliers(differences, max(window, OUTLIER_WINDOW))
    steps, base, differences = steps[kept], base[kept], differences[kept]

    last = last_level(differences, window)
    early = last_level(differences[: max(1, differences.size // 4)][::-1], max(window, OUTLIER_WINDOW))
    half = differences.size // 2
    line = slope(steps[half:].astype(np.float64), differences[half:])
    trend = _trend(line)
    loss = float(base[-last.n :].mean())
    onset = _onset(differences, base, window)
    return Gap(
        n_matched=n_matched,
        n_nonfinite=n_nonfinite,
        first_step=span[0],
        last_step=span[1],
        window=window,
        n_level=last.n,
        absolute=last.value,
        low=last.low,
        high=last.high,
        relative=_over(last.value, loss),
        relative_low=_over(last.low, loss),
        relative_high=_over(last.high, loss),
        baseline_loss=loss,
        early=early.value,
        early_low=early.low,
        kind=_kind(trend, early, last),
        trend=trend,
        slope=_per_thousand(line.value if line else None),
        slope_low=_per_thousand(line.low if line else None),
        slope_high=_per_thousand(line.high if line else None),
        onset_step=None if onset is None else int(steps[onset]),
        is_from_start=onset is not None and onset <= max(window, math.ceil(SMOOTHED_SHARE * steps.size)),
        largest_difference=largest,
        points=_points(steps, differences, base, window),
    )


def _trend(line: Slope | None) -> str:
    if line is None:
        return "unknown"
    change = abs(line.end - line.start)
    is_relevant = change >= RELEVANT_CHANGE * abs(line.start + line.end) / 2
    if not line.is_measurable or not is_relevant:
        return "flat"
    return "shrinking" if abs(line.end) < abs(line.start) else "growing"


def _kind(trend: str, early: Level, last: Level) -> str:
    if last.error is None:
        return "unknown"
    fallen = abs(early.value) - abs(last.value)
    if trend == "growing" and last.is_measurable:
        error = math.hypot(early.error or 0.0, last.error)
        return "growing" if -fallen > max(_SURE_WITH_TREND * error, RELEVANT_CHANGE * abs(last.value)) else "persistent"
    if early.error is not None and early.is_measurable:
        is_shrinking = trend == "shrinking" and last.is_measurable
        sure = _SURE_WITH_TREND if is_shrinking else _SURE
        if fallen > max(sure * math.hypot(early.error, last.error), RELEVANT_CHANGE * abs(early.value)):
            return "transient"
    return "persistent" if last.is_measurable else "none"


def _onset(differences: Floats, base: Floats, window: int) -> int | None:
    """Place since which the smoothed gap is above the usual limit."""
    limit = np.maximum(USUAL_ABSOLUTE, USUAL_RELATIVE * np.abs(rolling_mean(base, window)))
    below = np.flatnonzero(rolling_mean(differences, window) <= limit)
    if not below.size:
        return 0
    return int(below[-1]) + 1 if below[-1] + 1 < differences.size else None


def _points(steps: Steps, differences: Floats, base: Floats, window: int) -> tuple[GapPoint, ...]:
    smooth, loss = rolling_mean(differences, window), rolling_mean(base, window)
    places = np.unique(np.linspace(0, steps.size - 1, min(MAX_POINTS, steps.size)).round().astype(np.int64))
    return tuple(GapPoint(int(steps[i]), float(smooth[i]), _over(float(smooth[i]), float(loss[i]))) for i in places)


def _over(value: float | None, loss: float) -> float | None:
    return None if value is None or loss == 0 else value / abs(loss)


def _per_thousand(value: float | None) -> float | None:
    return None if value is None else 1000 * value


def _nothing(n_matched: int, n_nonfinite: int) -> Gap:
    unknown = dict.fromkeys(
        (
            "first_step", "last_step", "absolute", "low", "high", "relative", "relative_low", "relative_high",
            "baseline_loss", "early", "early_low", "onset_step", "slope", "slope_low", "slope_high",
            "largest_difference",
        )
    )  # fmt: skip
    return Gap(
        n_matched=n_matched, n_nonfinite=n_nonfinite, window=0, n_level=0, kind="unknown", trend="unknown",
        is_from_start=False, points=(), **unknown,
    )  # fmt: skip
