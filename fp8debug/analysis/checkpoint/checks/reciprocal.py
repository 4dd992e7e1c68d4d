"""Pairs of a scale and its inverse that are both stored: they have to multiply to one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fp8debug.analysis.checkpoint.checks.hit import Hit, Subject
from fp8debug.analysis.checkpoint.grids import scale_numbers
from fp8debug.analysis.checkpoint.numbers import can_be_numbers
from fp8debug.analysis.checkpoint.records import CheckPlace, Scale

_RELATIVE = 2.0**-21
"""Rounding the inverse, and an approximate reciprocal, may cost four units in the last place of FP32."""


def reciprocal_wrong(subject: Subject) -> Iterator[Hit]:
    """A stored inverse that is not the inverse of the scale beside it."""
    pairs = list(_pairs(subject))
    of_codes = {scale.name for one in subject.convention.quantised for scale in one.scales}
    for inverse, scale in pairs:
        first, second = scale_numbers(subject.store, inverse), scale_numbers(subject.store, scale)
        product = first * second
        wrong = ~(np.abs(product - 1) <= _RELATIVE)
        # Equal numbers are one scale of the codes under two names, which another check tells.
        if wrong.any() and not (scale.name in of_codes and np.array_equal(first, second)):
            where = tuple(int(at) for at in np.argwhere(wrong)[0])
            value = float(product[where])
            message = f"{inverse.name} times {scale.name} is {value:.6g} at {list(where)}, not 1"
            place = CheckPlace(inverse.name, message, value or None, {"product": value, "n": int(wrong.sum())})
            yield Hit("reciprocal_wrong", place, len(pairs), weight=float(wrong.sum()))


def _pairs(subject: Subject) -> Iterator[tuple[Scale, Scale]]:
    others = [*(scale for one in subject.convention.quantised for scale in one.scales), *subject.convention.scales]
    for inverse in subject.convention.scales:
        if inverse.kind != "reciprocal" or not can_be_numbers(inverse.encoding):
            continue
        fits = [
            scale
            for scale in others
            if scale.kind != "reciprocal"
            and scale.module == inverse.module
            and scale.shape == inverse.shape
            and _partner(inverse.name, scale.name)
        ]
        if len(fits) == 1:
            yield inverse, fits[0]


def _partner(inverse: str, scale: str) -> bool:
    """`...scale_inv_fwd` and `...scale_fwd`, `...weight_scale_inv` and `...weight_scale`."""
    return inverse.replace("_inv", "") == scale.replace("_inv", "") or "_inv" not in inverse
