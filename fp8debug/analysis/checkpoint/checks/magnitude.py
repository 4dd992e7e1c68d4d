"""How large weights come out: codes read as values, scales inverted or left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite, log2, prod, sqrt

import numpy as np

from fp8debug.analysis.checkpoint.checks.hit import Hit, Subject
from fp8debug.analysis.checkpoint.checks.names import starred
from fp8debug.analysis.checkpoint.facts import CodeFacts, ScaleFacts
from fp8debug.analysis.checkpoint.records import CheckPlace, Quantised
from fp8debug.formats import ELEMENT_FORMATS, Format, decode

FACTOR_OF_SIBLINGS = 64.0
"""Weights of one role differ by less between layers, also dead experts' and those of the first and the last one."""
FACTOR_OF_NOTHING = 2.0**20
"""So many times smaller than their siblings, weights do nothing."""
USUAL = (0.02, 20.0)
"""rms x sqrt(inputs) of the weights of a layer lies in between: 0.2 to 3 in trained language models."""
LARGEST_RMS = 32.0
"""Of a quantised weight, however few inputs it has."""
_FEWEST_SIBLINGS = 3
_NEAR = 8.0
_SECOND_LEVEL = ("E4M3",)


@dataclass(frozen=True, slots=True)
class Weight:
    """A matrix of weights and how large it is."""

    name: str
    role: str
    rms: float
    amax: float
    inputs: int
    quantised: Quantised | None
    facts: CodeFacts | None
    is_unscaled: bool
    """Whether its codes are read as they are: without a scale, or with one of exactly 1."""

    @property
    def limits(self) -> tuple[float, float]:
        """Least and largest rms that is no fault by itself."""
        low, high = (limit / sqrt(max(self.inputs, 1)) for limit in USUAL)
        return low / FACTOR_OF_SIBLINGS, min(high * FACTOR_OF_SIBLINGS, LARGEST_RMS)

    @property
    def are_codes(self) -> bool:
        """Whether codes that were scaled to the range of their format are read as values: no weight is that large."""
        if self.quantised is None:
            return self.amax in (448.0, 240.0, 57344.0) and self.rms > 1
        return self.is_unscaled and self.amax >= ELEMENT_FORMATS[self.quantised.fmt].max / 2

    @property
    def is_usual(self) -> bool:
        """Whether a layer with so many inputs may have such weights."""
        low, high = self.limits
        return low <= self.rms <= high and not self.are_codes


def magnitude(subject: Subject) -> Iterator[Hit]:
    """Weights far larger or smaller than those of the same role in other layers, or than any layer's; plain casts."""
    weights = _weights(subject)
    yield from _unscaled(weights)
    expected = _Expected(weights)
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
    if scale.encoding in _SECOND_LEVEL and all(level.kind != "tensor" for level in one.quantised.scales):
        return f", {times}: its {scale.encoding} scales have no second level, one number for the tensor"
    return f", {times}"


def _times(factor: float) -> str:
    return f"{factor:.3g} times too large" if factor > 1 else f"{1 / factor:.3g} times too small"


def _may_be_exponents(numbers: ScaleFacts) -> bool:
    some = (numbers.smallest, numbers.median, numbers.largest)
    return all(number is not None and number.is_integer() and 32 <= number <= 254 for number in some)


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


_MUCH_LOST = 0.05


def _lost(facts: CodeFacts, fmt: Format) -> tuple[float, float]:
    """Shares of the codes that are zero and subnormal."""
    values = np.abs(decode(np.arange(1 << fmt.bits, dtype=np.uint8), fmt))
    is_subnormal = (values > 0) & (values < fmt.min_normal)
    return facts.n_zero / facts.n, float(facts.histogram[is_subnormal].sum() / max(facts.n_sampled, 1))


class _Expected:
    """What weights should be like: as those of the same role, else as all in the checkpoint, else as any."""

    def __init__(self, weights: list[Weight]) -> None:
        usual = [one for one in weights if one.is_usual]
        by_role: dict[str, list[float]] = defaultdict(list)
        for one in usual:
            by_role[one.role].append(one.rms)
        self._by_role: Mapping[str, list[float]] = by_role
        self._of_all = float(np.median([one.rms * sqrt(one.inputs) for one in usual])) if usual else 1.0

    def has_siblings(self, one: Weight) -> bool:
        """Whether enough others have the same role and are usual."""
        return len(self._by_role.get(one.role, ())) - one.is_usual >= _FEWEST_SIBLINGS

    def of(self, one: Weight) -> float:
        """The rms to expect."""
        if self.has_siblings(one):
            return float(np.median(self._by_role[one.role]))
        return self._of_all / sqrt(max(one.inputs, 1))


def _weights(subject: Subject) -> list[Weight]:
    """All matrices that hold something; of those in high precision what is named weight."""
    facts, found = subject.facts, []
    do_not_fit = {misfit.tensor for misfit in subject.convention.misfits}
    for one in subject.convention.quantised:
        codes = facts.codes.get(one.name)
        if codes is None or one.name in do_not_fit or not (isfinite(codes.rms) and codes.rms > 0):
            continue
        is_unscaled = _is_unscaled(subject, one)
        amax = codes.largest if is_unscaled else codes.largest * codes.rms / codes.rms_codes
        role = starred(one.module or one.name)[0]
        found.append(Weight(one.name, role, codes.rms, amax, _inputs(one.shape), one, codes, is_unscaled))
    for name in subject.convention.plain:
        plain = facts.plain.get(name)
        shape = subject.store.tensors[name].shape
        if plain is not None and plain.rms > 0 and len(shape) > 1 and name.endswith(".weight"):
            role = starred(name.removesuffix(".weight"))[0]
            found.append(Weight(name, role, plain.rms, plain.amax, _inputs(shape), None, None, False))
    return found


def _inputs(shape: tuple[int, ...]) -> int:
    """What is summed over: K of (..., N, K), all but the first axis of a convolution."""
    return prod(shape[1:]) if len(shape) > 3 else (shape or (1,))[-1]


def _is_unscaled(subject: Subject, one: Quantised) -> bool:
    of_codes = [subject.facts.scales.get(scale.name) for scale in one.scales]
    return all(facts is not None and facts.n_one == facts.n for facts in of_codes)
