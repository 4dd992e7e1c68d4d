"""How far a loss curve lies above the baseline's at the end of the training."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fp8debug.analysis.compare.curve import Curve, Floats, matched
from fp8debug.analysis.compare.levels import MIN_VALUES, level, rolling_mean, without_outliers

LAST_SHARE = 0.25
"""Part of the matched steps, at their end, that gaps are means of; at least `MIN_VALUES` steps."""
POINTS = 60


@dataclass(frozen=True, slots=True)
class Tail:
    """Loss of a run minus the baseline's at the same steps, over the last of them."""

    gap: float | None
    """Mean without steps that are far from the others; infinite where the loss is mostly not finite, None: unknown."""
    error: float | None
    """Half of the mean's 95 % band, from the means of blocks of neighbouring steps; None: too few steps."""
    loss: float | None
    """Mean loss of the run there."""
    baseline_loss: float | None
    first_step: int | None
    last_step: int | None
    n_steps: int
    n_far: int
    """Steps of those that are in no gap, being far from the others: spikes, which no mean should hang on."""
    n_nonfinite: int
    """Steps, of all matched ones, at which the run's loss is NaN or infinite and the baseline's is not."""
    curve: tuple[tuple[int, float], ...]
    """(step, smoothed difference) over the whole training, at most `POINTS`."""


def tail_gap(baseline: Curve, run: Curve) -> Tail:
    """The gap at the end."""
    ours, theirs = matched(baseline, run)
    steps, base, loss = baseline.steps[ours], baseline.loss[ours], run.loss[theirs]
    known = np.isfinite(base)
    steps, base, loss = steps[known], base[known], loss[known]
    n = min(steps.size, max(MIN_VALUES, math.ceil(LAST_SHARE * steps.size)))
    n_nonfinite = int((~np.isfinite(loss)).sum())
    curve = _smoothed(steps, loss - base)
    if not n:
        return Tail(None, None, None, None, None, None, 0, 0, n_nonfinite, curve)
    steps, base, loss = steps[-n:], base[-n:], loss[-n:]
    span = int(steps[0]), int(steps[-1]), n
    finite = np.isfinite(loss)
    if 2 * int(finite.sum()) <= n:
        return Tail(math.inf, None, None, float(base.mean()), *span, 0, n_nonfinite, curve)
    base, loss = base[finite], loss[finite]
    differences = loss - base
    kept = without_outliers(differences, 2 * MIN_VALUES)
    found = level(differences[kept])
    error = None if found.low is None else found.value - found.low
    n_far = int((~kept).sum())
    return Tail(found.value, error, float(loss.mean()), float(base.mean()), *span, n_far, n_nonfinite, curve)


def _smoothed(steps: np.ndarray[tuple[int], np.dtype[np.int64]], differences: Floats) -> tuple[tuple[int, float], ...]:
    finite = np.isfinite(differences)
    steps, differences = steps[finite], differences[finite]
    if not steps.size:
        return ()
    smooth = rolling_mean(differences, min(steps.size, max(MIN_VALUES // 2, steps.size // 20)))
    places = np.unique(np.linspace(0, steps.size - 1, min(POINTS, steps.size)).round().astype(np.int64))
    return tuple((int(steps[place]), float(smooth[place])) for place in places)
