"""What the stored scales have become of those that the codes were made with: rounded up or down, lost, in disorder.

The scales that the codes were made with are known in two ways: the reference's own largest value of each block over
the format's, where that gives the very codes that are stored; else the factor that fits each block best.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from fp8debug.analysis.checkpoint.records import Scale
from fp8debug.analysis.checkpoint.reference.hypotheses.evidence import Evidence
from fp8debug.analysis.checkpoint.reference.hypotheses.siblings import are_near, copied_from
from fp8debug.analysis.checkpoint.reference.hypotheses.trial import (
    Reading,
    Trial,
    tolerance,
    try_reading,
)
from fp8debug.analysis.checkpoint.reference.hypotheses.wording import (
    OF_OTHER_WEIGHTS,
    cell_noun,
    each_cell,
    gains,
    number,
    too_large,
)
from fp8debug.errors import escape
from fp8debug.formats import BoolArray, Format
from fp8debug.metrics import Float64Array
from fp8debug.recipes.mx import SCALE_RULES, e8m0_scales

_SAME_CODES = 0.97
_FEWEST_CELLS = 8
"""Fewer fitted factors show no pattern."""
_ELEMENTS_A_CELL = 16
_LEAST_SPREAD = 1.15
WRITERS_MAXIMA = {"E4M3": (240.0, 224.0), "E4M3FNUZ": (224.0,), "E2M1": (4.0,)}
"""Largest values that scales are made for, beside the format's own."""


@dataclass(frozen=True, slots=True)
class OwnScales:
    """Scales that the codes were made with, one a cell."""

    scales: Float64Array
    words: str
    """How they follow from the reference; empty: they are fitted."""

    @property
    def is_fitted(self) -> bool:
        """Whether they are."""
        return not self.words


def became_of_scales(evidence: Evidence) -> Iterator[Trial]:
    """How the stored scales follow from those that the codes were made with."""
    own = own_scales(evidence)
    quantised = evidence.quantised
    if own is None or quantised is None or not quantised.scales:
        return
    stored = evidence.cells.at_cells(evidence.factors)
    usable = (stored > 0) & (own.scales > 0) & np.isfinite(stored) & np.isfinite(own.scales)
    usable &= evidence.cell_amax > 0  # writers give what is all zero any scale
    if not usable.any():
        return
    found = _relation(evidence, stored[usable], own.scales[usable], own)
    if found is None:
        return
    name, message = found
    rank = 2 if name in ("stale", "other_scales", "copied_scale") or "wrong order" in message else 0
    scales = np.where(usable, own.scales, stored)
    freedom = int(usable.sum()) if own.is_fitted else 0
    trial = try_reading(evidence, Reading(name, message, evidence.cells.spread(scales), freedom=freedom, rank=rank))
    if trial is not None:
        yield trial


def own_scales(evidence: Evidence) -> OwnScales | None:
    """The scales that the codes were made with; None: too little tells of them."""
    if evidence.fmt is None:
        return None
    amax = evidence.cell_amax.astype(np.float64)
    for scales, words in _rules(evidence, amax, evidence.fmt):
        factors = evidence.cells.spread(np.where(scales > 0, scales, 1))
        if evidence.same_codes(factors) >= _SAME_CODES:
            return OwnScales(scales, words)
    if evidence.cells.n < _FEWEST_CELLS or evidence.n < _ELEMENTS_A_CELL * evidence.cells.n:
        return None
    return OwnScales(evidence.best_cell_factors, "")


def _rules(evidence: Evidence, amax: Float64Array, fmt: Format) -> Iterator[tuple[Float64Array, str]]:
    of = each_cell(evidence)
    for largest in (fmt.max, *WRITERS_MAXIMA.get(fmt.name, ())):
        yield (
            (amax.astype(np.float32) / np.float32(largest)).astype(np.float64),
            (f"the largest value of {of} / {number(largest)}"),
        )
    for rule in SCALE_RULES:
        scales = e8m0_scales(amax.astype(np.float32), fmt, rule).astype(np.float64)
        yield scales, f"the power of two that {rule.upper()} gives for the largest value of {of}"


def _relation(evidence: Evidence, stored: Float64Array, own: Float64Array, whose: OwnScales) -> tuple[str, str] | None:
    quotient = stored / own
    near = 0.005 if not whose.is_fitted else tolerance(evidence.fmt) + 0.02
    low, high = float(quotient.min()), float(quotient.max())
    assert evidence.quantised is not None
    scale = evidence.quantised.grid_scale or evidence.quantised.scales[0]
    name, made = escape(scale.name), f" ({whose.words})" if whose.words else ""
    is_even = high / low < (1 + near if stored.size > 1 else 1)
    if bool(_powers_of_two(stored).all()) and not _powers_of_two(own).all() and not is_even:
        rounded = _rounding(quotient, near, stored.size > 1 and whose.is_fitted)
        if rounded is not None:
            kind, way = rounded
            return kind, (
                f"{name} is rounded {way} to powers of two, but the codes were made with the scales before that{made}: "
                f"{gains(evidence)}"
            )
    if is_even or (stored.size == 1 and stored[0] != 1):
        if whose.is_fitted:
            return None
        kind, words = _of_others(evidence, scale, whose, "stale")
        return kind, f"{too_large(float(np.median(quotient)))}: {words}"
    if np.all(stored == stored[0]):
        return "lost_scales", _lost(evidence, float(stored[0]), name, made, stored.size)
    if bool(_powers_of_two(own).all()) and not whose.is_fitted and set(np.unique(quotient)) <= {0.5, 1.0, 2.0}:
        off = int(np.count_nonzero(quotient != 1))
        return "mx_rounding", (
            f"the exponents of {name} are off by one in {off:,} of {stored.size:,} {cell_noun(evidence)}: the codes "
            f"were made with {whose.words}, and the scales that are stored follow another rule"
        )
    enough = 3 if not whose.is_fitted else _FEWEST_CELLS
    if stored.size >= enough and np.allclose(np.sort(stored), np.sort(own), rtol=near, atol=0):
        return "permuted_grid", f"{name} has the right numbers in the wrong order: {gains(evidence)}"
    if whose.is_fitted:
        return None
    kind, words = _of_others(evidence, scale, whose, "other_scales")
    return kind, f"{words} ({gains(evidence)})"


def _of_others(evidence: Evidence, scale: Scale, own: OwnScales, unknown: str) -> tuple[str, str]:
    """The name of the hypothesis, and whose the stored numbers are, where that is known."""
    other, name = copied_from(evidence, scale), escape(scale.name)
    made = f"does not belong to these codes, which were made with {own.words}"
    if other is None:
        return unknown, f"{name} {made}; {OF_OTHER_WEIGHTS}"
    numbers = "numbers" if prod(scale.shape) > 1 else "number"
    # One number may be that of a far layer by chance.
    kind = "copied_scale" if prod(scale.shape) > 1 or are_near(scale.name, other) else unknown
    return kind, f"{name} holds the same {numbers} as {escape(other)} and {made}"


def _powers_of_two(values: Float64Array) -> BoolArray:
    found: BoolArray = np.frexp(values)[0] == 0.5
    return found


def _rounding(quotient: Float64Array, near: float, must_vary: bool) -> tuple[str, str] | None:
    low, high = float(quotient.min()), float(quotient.max())
    if must_vary and high / low < _LEAST_SPREAD:
        return None
    if low >= 1 - near and high <= 2 * (1 + near):
        return "ceil_scale", "up"
    if low >= 0.5 * (1 - near) and high <= 1 + near:
        return "floor_scale", "down"
    if low >= (1 - near) * 2 / 3 and high <= 1.5 * (1 + near):
        return "nearest_scale", "to the nearest"
    return None


def _lost(evidence: Evidence, value: float, name: str, made: str, n: int) -> str:
    if n == 1:
        return f"{name} is 1.0: the scale that the codes were made with{made} is lost: {gains(evidence)}"
    return (
        f"all of {name} is {number(value)}, but the codes were made with a scale for {each_cell(evidence)}"
        f"{made}: {gains(evidence)}"
    )
