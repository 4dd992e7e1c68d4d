"""Codes that were not rounded to the nearest: truncated, rounded away from zero, or by chance."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np

from fp8debug.analysis.checkpoint.reference.compared import Hypothesis
from fp8debug.analysis.checkpoint.reference.hypotheses.cells import Rows
from fp8debug.analysis.checkpoint.reference.hypotheses.evidence import Evidence
from fp8debug.analysis.checkpoint.reference.hypotheses.trial import Trial
from fp8debug.formats import FORMATS, BoolArray, Float32Array, decode
from fp8debug.metrics import Float64Array

_ELEMENTS = 1 << 18
_NEARLY_ALL = 0.98
_FEWEST = 512
_LEAST_SHARE = 0.1
_FEWEST_TWINS = 60
_TWIN_COLUMNS = 16
"""Within as many, values had the same scale in any earlier rounding."""


def other_rounding(evidence: Evidence) -> Iterator[Trial]:
    """Which of its two neighbours each value went to."""
    if evidence.fmt is None:
        return
    between = Between(evidence)
    if between.n < _FEWEST or between.at_neighbours < _NEARLY_ALL:
        return
    up, is_up = between.share, between.went_up
    if not _LEAST_SHARE < np.mean(up < 0.5) < 1 - _LEAST_SHARE:
        return  # weights of few values, which tell nothing of the rest
    odd = np.abs(up - 0.5) > 0.01
    n = int(np.count_nonzero(odd & (is_up != (up > 0.5))))
    if np.mean(~is_up[odd]) >= _NEARLY_ALL:
        words = f"codes were truncated towards zero, not rounded to the nearest: {n:,} of {between.n:,} are one lower"
        yield Trial(Hypothesis("truncation", words, float(np.mean(~is_up[odd])), None), 0, 1.0)
    elif np.mean(is_up[odd]) >= _NEARLY_ALL:
        words = f"codes were rounded away from zero, not to the nearest: {n:,} of {between.n:,} are one higher"
        yield Trial(Hypothesis("rounded_away", words, float(np.mean(is_up[odd])), None), 0, 1.0)
    elif _by_chance(up, is_up):
        deterministic = is_deterministic(between)
        if deterministic:
            return
        words = (
            f"codes were rounded stochastically: {n:,} of {between.n:,} went to the farther neighbour, the more often "
            "the nearer it was, and the mean is right"
        )
        if deterministic is None:
            words += "; a second rounding would look alike, and no value occurs often enough to tell"
        freedom = 1 if deterministic is None else 0
        yield Trial(Hypothesis("stochastic_rounding", words, between.at_neighbours, None), freedom, 1.0 - freedom)


class Between:
    """Sampled values that lie between two codes.

    Attributes:
        n: how many there are.
        at_neighbours: share of them whose code is one of the two.
        x: (k,) those in the reference.
        place: (k,) which of them share a line and some columns, and so any earlier scale as well.
        share: (k,) where they lie between the two, 0 to 1.
        went_up: (k,) whether they went to the one of larger magnitude.
    """

    def __init__(self, evidence: Evidence) -> None:
        assert evidence.fmt is not None
        every = max(1, evidence.n // _ELEMENTS)
        x, c = evidence.x[::every], evidence.codes[::every]
        f = np.broadcast_to(evidence.factors, evidence.x.shape)[::every]
        with np.errstate(all="ignore"):
            scaled = (x / f).astype(np.float64)
        table = _magnitudes(evidence.fmt.name)
        usable = np.isfinite(scaled) & (np.abs(scaled) < table[-1]) & (scaled != 0)
        magnitude, code = np.abs(scaled[usable]), np.abs(c[usable]).astype(np.float64)
        below: Rows = np.searchsorted(table, magnitude, "right") - 1
        low, high = table[below], table[below + 1]
        same_sign = (c[usable] == 0) | (np.sign(c[usable]) == np.sign(scaled[usable]))
        inner = magnitude > low
        at_one = same_sign & ((code == low) | (code == high))
        self.n = int(np.count_nonzero(inner))
        self.at_neighbours = float(np.count_nonzero(at_one & inner) / max(1, self.n))
        kept = at_one & inner
        self.share: Float64Array = ((magnitude - low) / (high - low))[kept]
        self.went_up: BoolArray = (code == high)[kept]
        self.x: Float32Array = x[usable][kept]
        self.place: Rows = _places(x.shape, min(evidence.cells.width, _TWIN_COLUMNS))[usable][kept]


def is_deterministic(between: Between) -> bool | None:
    """Whether equal values next to each other always went the same way; None: too few are equal, or some did."""
    order = np.lexsort((between.x, between.place))
    x, place, up = between.x[order], between.place[order], between.went_up[order]
    # Near the middle, where chance would decide either way.
    twins = (x[1:] == x[:-1]) & (place[1:] == place[:-1]) & (np.abs(between.share[order][1:] - 0.5) < 0.3)
    n = int(np.count_nonzero(twins))
    if n < _FEWEST_TWINS:
        return None
    unlike = np.count_nonzero(twins & (up[1:] != up[:-1])) / n
    # By chance it would be 4 in 10.
    return True if unlike < 0.05 else False if unlike > 0.3 else None


def _places(shape: tuple[int, ...], width: int) -> Rows:
    lines, length = shape
    columns = np.arange(length) // width
    places: Rows = np.arange(lines)[:, None] * (int(columns[-1]) + 1) + columns
    return places


def _by_chance(share: Float64Array, went_up: BoolArray) -> bool:
    """Whether values go up as often as they are near to it."""
    for low, high in ((0.05, 0.3), (0.3, 0.5), (0.5, 0.7), (0.7, 0.95)):
        band = (share > low) & (share < high)
        n = int(np.count_nonzero(band))
        if n < 50 or abs(float(went_up[band].mean() - share[band].mean())) > 0.03 + 2 / np.sqrt(n):
            return False
    return True


@cache
def _magnitudes(fmt: str) -> Float64Array:
    """Finite magnitudes of a format, ascending."""
    known = FORMATS[fmt]
    return np.unique(np.abs(decode(np.arange(known.max_code + 1, dtype=np.uint8), known).astype(np.float64)))
