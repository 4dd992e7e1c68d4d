"""How large weights come out: codes read as values, scales inverted or left out."""

from __future__ import annotations

from collections.abc import Iterator
from math import log2, sqrt

import numpy as np

from fp8debug.analysis.checkpoint.checks.hit import Hit, Subject
from fp8debug.analysis.checkpoint.checks.names import is_no_weight
from fp8debug.analysis.checkpoint.checks.weights import FACTOR_OF_SIBLINGS, USUAL, Expected, Weight, weights_of
from fp8debug.analysis.checkpoint.facts import CodeFacts, ScaleFacts
from fp8debug.analysis.checkpoint.records import CheckPlace
from fp8debug.formats import ELEMENT_FORMATS, Format, decode

FACTOR_OF_NOTHING = 2.0**20
"""So many times smaller than their siblings, weights do nothing."""
_NEAR = 8.0
_SECOND_LEVEL = ("E4M3",)
_MUCH_LOST = 0.5


def magnitude(subject: Subject) -> Iterator[Hit]:
    """Weights far larger or smaller than those of the same role in other layers, or than any layer's; plain casts."""
    every = weights_of(subject)
    yield from _unscaled(every)
    weights = [one for one in every if not is_no_weight(one.name)]
    expected = Expected(weights)
    for one in weights:
        usual = expected.of(one)
        factor = one.rms / usual
        verdict = _verdict(one, factor, expected.has_siblings(one))
        if verdict is None:
            continue
        check, severity = verdict
        words = f"{one.name}: rms {one.rms:.3g}, largest {one.amax:.4g}, instead of an rms of about {usual:.2g}"
        yield Hit(
            check,
            CheckPlace(
                one.name,
                f"{words}{_explained(subject, one, usual, factor)}.",
                factor,
                {"rms": one.rms, "expected_rms": usual, "amax": one.amax},
                f"rms {one.rms:.3g} instead of {usual:.2g}, {_times(factor)}",
            ),
            of=len(weights),
            severity=severity,
            weight=abs(log2(factor)),
        )


def _verdict(one: Weight, factor: float, has_siblings: bool) -> tuple[str, str | None] | None:
    """Check and severity (None: that of checks.toml); None: nothing is wrong."""
    low, high = one.limits
    if one.are_codes and (one.quantised is not None or factor > FACTOR_OF_SIBLINGS):
        return "codes_as_values", None
    is_beyond_usual = one.rms * sqrt(one.inputs) > USUAL[1]  # else its siblings are small: experts that are never used
    if (
        factor > FACTOR_OF_SIBLINGS
        and is_beyond_usual
        and (has_siblings or (one.rms > high and one.quantised is not None))
    ):
        return "magnitude_too_large", None if one.quantised is not None else "warning"
    if factor < 1 / FACTOR_OF_SIBLINGS and one.quantised is not None and (has_siblings or one.rms < low):
        return "magnitude_too_small", "warning" if factor < 1 / FACTOR_OF_NOTHING else None
    return None


def _explained(subject: Subject, one: Weight, usual: float, factor: float) -> str:
    """What would make the magnitude right, where something does; begins with a colon."""
    if one.are_codes:
        return f": codes read as values, about 1/scale = {factor:.4g}x too large"
    times = _times(factor)
    if one.quantised is None or one.facts is None or one.quantised.grid_scale is None or not one.facts.rms_codes:
        return f", {times}"
    scale = one.quantised.grid_scale
    if scale.encoding in _SECOND_LEVEL and all(level.kind != "tensor" for level in one.quantised.scales):
        return f", {times}: its {scale.encoding} scales have no second level, one number for the tensor"
    numbers = subject.facts.scales.get(scale.name)
    inverted = one.facts.rms_codes**2 / one.rms
    if numbers is not None and numbers.median is not None and _may_be_exponents(numbers):
        as_exponents = one.facts.rms_codes * 2.0 ** (numbers.median - 127)
        if _are_near(as_exponents, usual):
            return (
                f", {times}: its scales are integers from {numbers.smallest:g} to {numbers.largest:g}, as E8M0 "
                f"exponents are; read as such, 2^(n - 127), they give an rms of {as_exponents:.2g}"
            )
    if _are_near(inverted, usual):
        return f", {times}: with {scale.name} inverted it would be {inverted:.2g}"
    return f", {times}"


def _times(factor: float) -> str:
    return f"{factor:.3g} times too large" if factor > 1 else f"{1 / factor:.3g} times too small"


def _may_be_exponents(numbers: ScaleFacts) -> bool:
    smallest, median, largest = numbers.smallest, numbers.median, numbers.largest
    if smallest is None or median is None or largest is None or not 32 <= median <= largest <= 254:
        return False
    return smallest >= 0 and all(number.is_integer() for number in (smallest, median, largest))  # 0: nothing but zeros


def _are_near(first: float, second: float) -> bool:
    return first > 0 and second / _NEAR < first < second * _NEAR


def _unscaled(weights: list[Weight]) -> Iterator[Hit]:
    """Weights that were cast as they are: what the format's range costs them."""
    unscaled = [one for one in weights if one.quantised is not None and not one.quantised.scales]
    for one in unscaled:
        if one.are_codes or one.facts is None or one.quantised is None:
            continue
        zero, subnormal = _lost(one.facts, ELEMENT_FORMATS[one.quantised.fmt])
        message = (
            f"{one.name}: values are stored unscaled; {100 * zero:.2g} % of the codes are zero and "
            f"{100 * subnormal:.2g} % are subnormal, rms {one.rms:.2g}."
        )
        numbers = {"zero": zero, "subnormal": subnormal, "rms": one.rms}
        severity = "watch" if zero > _MUCH_LOST else None
        yield Hit(
            "stored_unscaled",
            CheckPlace(one.name, message, None, numbers, f"{100 * zero:.2g} % zero"),
            len(unscaled),
            severity,
            weight=zero,
        )


def _lost(facts: CodeFacts, fmt: Format) -> tuple[float, float]:
    """Shares of the codes that are zero and subnormal."""
    values = np.abs(decode(np.arange(1 << fmt.bits, dtype=np.uint8), fmt))
    is_subnormal = (values > 0) & (values < fmt.min_normal)
    return facts.n_zero / facts.n, float(facts.histogram[is_subnormal].sum() / max(facts.n_sampled, 1))
