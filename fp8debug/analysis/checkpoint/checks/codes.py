"""What codes show of how they were made, without the values that they were made from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fp8debug.analysis.checkpoint.checks.hit import Hit, Subject
from fp8debug.analysis.checkpoint.facts import CodeFacts, Int64Array
from fp8debug.analysis.checkpoint.records import CheckPlace, Quantised
from fp8debug.formats import ELEMENT_FORMATS, Format, Uint8Array, decode

_AT_ONE_MAXIMUM = 0.9
"""Share of blocks with the same largest code from which it is the maximum that a writer aimed at."""
_FEWEST_BLOCKS = 16
_SOME, _MANY = 0.02, 0.6
_SELDOM = 0.01
_CLIPPED, _HEAVILY = 0.001, 0.01
_KNOWN_MAXIMA = {
    ("E4M3", 240.0): "the largest value of E4M3FNUZ and of E4M3 with infinities: written for such hardware, or by it",
    ("E4M3", 224.0): "half of the format's largest: a margin of one bit",
    ("E4M3FNUZ", 224.0): "what some writers take for FNUZ, and where bytes of E4M3 end",
    ("E5M2", 57344.0 / 2): "half of the format's largest: a margin of one bit",
}


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of one tensor that hold something."""

    quantised: Quantised
    facts: CodeFacts
    largest: Int64Array
    """int64 (2^bits / 2,): blocks by their largest code, those that are all zero left out."""
    is_power_of_two: bool

    @property
    def n(self) -> int:
        """Blocks."""
        return int(self.largest.sum())


def codes_maximum(subject: Subject) -> Iterator[Hit]:
    """Writers that aim at another maximum than the format's, where they say so in every block."""
    for fmt, tensors in _by_format(subject).items():
        judged = [one for one in tensors if not one.is_power_of_two]
        total = sum((one.largest for one in judged), np.zeros(fmt.sign_bit, np.int64))
        if total.sum() < 2:
            continue
        code = int(np.argmax(total))
        share = float(total[code] / total.sum())
        value = _value(code, fmt)
        if code == fmt.max_code or share < _AT_ONE_MAXIMUM:
            continue
        known = _KNOWN_MAXIMA.get((fmt.name, value), "of the format's range the rest is not used")
        if _mixed_up(fmt, tensors):
            continue
        message = (
            f"the largest {fmt.name} code is {value:g}, not {fmt.max:g}, in {int(total[code]):,} of "
            f"{int(total.sum()):,} blocks of {len(judged):,} tensors: {known}. It costs up to "
            f"{np.log2(fmt.max / value):.1f} bits of range below, no precision above."
        )
        names = judged[0].quantised.name
        place = CheckPlace(names, message, numbers={"maximum": value, "share": share, "fmt": fmt.name})
        yield Hit("code_maximum", place)


def codes_below_maximum(subject: Subject) -> Iterator[Hit]:
    """Tensors of which some blocks reach the format's maximum and some do not."""
    for fmt, tensors in _by_format(subject).items():
        if fmt.bits < 8:
            continue  # scales of 8 bits round so coarsely that blocks of 4-bit codes may miss their maximum
        judged = [one for one in tensors if one.n >= _FEWEST_BLOCKS and not one.is_power_of_two]
        for one in judged:
            top = int(np.flatnonzero(one.largest)[-1])
            below = int(one.largest[: top - 1].sum())
            share = below / one.n
            if _SOME < share < _MANY:
                message = (
                    f"{one.quantised.name}: in {below:,} of {one.n:,} blocks no code comes near {_value(top, fmt):g}, "
                    "which the others reach: their scale has a floor, or belongs to blocks of another size."
                )
                numbers = {"n_below": below, "n_blocks": one.n}
                yield Hit(
                    "code_blocks_below",
                    CheckPlace(one.quantised.name, message, numbers=numbers),
                    len(judged),
                    weight=share,
                )


def codes_clipped(subject: Subject) -> Iterator[Hit]:
    """Tensors with far more codes at the maximum than scaling by the largest magnitude leaves there."""
    for fmt, tensors in _by_format(subject).items():
        for one in (one for one in tensors if _is_smooth(one, fmt)):
            clipped = _n_clipped(one, fmt) / one.facts.n
            if clipped > _CLIPPED:
                message = (
                    f"{one.quantised.name}: {one.facts.n_largest:,} of {one.facts.n:,} codes are at {fmt.max:g}, about "
                    f"{100 * clipped:.2g} % more than its {one.n:,} blocks need: values were clipped."
                )
                yield Hit(
                    "code_clipped",
                    CheckPlace(one.quantised.name, message, numbers={"clipped": clipped}),
                    len(tensors),
                    severity="warning" if clipped > _HEAVILY else None,
                    weight=clipped,
                )


def _n_clipped(one: Blocks, fmt: Format) -> float:
    """Codes at the maximum beyond those that a smooth distribution and one or two for each block would leave there."""
    sampled = max(one.facts.n_sampled, 1)
    sign = fmt.sign_bit
    before = one.facts.histogram[fmt.max_code - 1] + one.facts.histogram[sign + fmt.max_code - 1]
    expected = float(before) * one.facts.n / sampled
    counted = one.facts.block_histogram
    n_blocks = 1.0 if counted is None else one.n * one.facts.n_blocks / float(counted.sum())
    return one.facts.n_largest - 1.25 * expected - 2 * n_blocks


def _is_smooth(one: Blocks, fmt: Format) -> bool:
    """Whether its values are spread out: those of ternary weights all sit at the maximum, and nothing was clipped."""
    of_magnitude = one.facts.histogram.reshape(2, -1).sum(axis=0)[1 : fmt.max_code + 1]
    return int(np.count_nonzero(of_magnitude)) * 2 > of_magnitude.size or int(np.count_nonzero(of_magnitude)) > 16


def codes_all_zero(subject: Subject) -> Iterator[Hit]:
    """Tensors of which every code is zero."""
    for one in subject.convention.quantised:
        facts = subject.facts.codes.get(one.name)
        if facts is not None and facts.n and facts.n_zero == facts.n:
            message = f"{one.name}: all {facts.n:,} codes are zero."
            yield Hit("code_all_zero", CheckPlace(one.name, message), len(subject.facts.codes), weight=facts.n)


def codes_mixed_up(subject: Subject) -> Iterator[Hit]:
    """Codes of OCP E4M3 in a file that says FNUZ, or the reverse."""
    for fmt, why in formats_mixed_up(subject).items():
        for one in _by_format(subject, all_scales=True)[fmt]:
            factor = 0.5 if fmt.name.endswith("FNUZ") else 2.0
            other = fmt.name.removesuffix("FNUZ") if fmt.name.endswith("FNUZ") else f"{fmt.name}FNUZ"
            message = (
                f"{one.quantised.name} is stored as {fmt.name}, but {why}: a format mix-up, not a scale error. "
                f"The same byte of {other} means {'twice' if factor < 1 else 'half'} as much."
            )
            place = CheckPlace(one.quantised.name, message, factor)
            yield Hit("code_format_mixup", place, len(subject.facts.codes), weight=one.facts.n_nan / one.facts.n)


def formats_mixed_up(subject: Subject) -> dict[Format, str]:
    """Formats whose codes are of another one, and why."""
    found = {fmt: _mixed_up(fmt, tensors) for fmt, tensors in _by_format(subject, all_scales=True).items()}
    return {fmt: why for fmt, why in found.items() if why}


def _mixed_up(fmt: Format, tensors: list[Blocks]) -> str:
    """Why the codes are of the other format; empty: they are not, or nothing tells."""
    histogram = sum((one.facts.histogram for one in tensors), np.zeros(1 << fmt.bits, np.int64))
    n_nan = sum(one.facts.n_nan for one in tensors)
    n_tensors_nan = sum(one.facts.n_nan > 0 for one in tensors)
    top = max((int(np.flatnonzero(one.largest)[-1]) for one in tensors if one.n), default=0)
    if fmt.name == "E4M3FNUZ":
        # OCP E4M3 has -0 where FNUZ has NaN, and ends at 0x7E, where FNUZ goes to 0x7F.
        at_top = sum(int(one.largest[0x7E]) for one in tensors)
        n_blocks = sum(one.n for one in tensors)
        ends_early = top == 0x7E and n_blocks > 0 and at_top >= _AT_ONE_MAXIMUM * n_blocks
        is_seldom = histogram[0x80] <= max(3 * histogram[0x00], _SELDOM * histogram.sum())
        has_negative_zeros = n_nan > 0 and top <= 0x7E and is_seldom
        if ends_early and has_negative_zeros:
            return f"{n_nan:,} codes of the checkpoint are 0x80, NaN here, -0 in E4M3, and blocks end at 0x7E as there"
        if has_negative_zeros and n_tensors_nan * 2 > len(tensors):
            return f"{n_nan:,} codes are 0x80, NaN here, -0 in E4M3, and no code is its largest, 0x7F"
    if fmt.name == "E4M3" and n_nan:
        # FNUZ has no -0, and 0x7F is its largest where OCP E4M3 has NaN.
        n_zero = int(histogram[0])
        if n_tensors_nan == len(tensors) and not histogram[0x80] and n_zero >= 8:
            return f"every tensor has codes 0x7F or 0xFF ({n_nan:,}), NaN here, the largest in E4M3FNUZ, and none is -0"
    return ""


def _by_format(subject: Subject, *, all_scales: bool = False) -> dict[Format, list[Blocks]]:
    """Tensors that were measured and hold something; unless `all_scales`, those that have a scale."""
    found: dict[Format, list[Blocks]] = defaultdict(list)
    for one in subject.convention.quantised:
        facts = subject.facts.codes.get(one.name)
        if facts is None or not facts.n or (one.grid_scale is None and not all_scales):
            continue
        fmt = ELEMENT_FORMATS[one.fmt]
        if facts.block_histogram is not None:
            largest = facts.block_histogram.copy()
        else:
            largest = np.bincount(_code(facts.largest, fmt), minlength=fmt.sign_bit).astype(np.int64)
        largest[0] = 0
        scale = None if one.grid_scale is None else subject.facts.scales.get(one.grid_scale.name)
        found[fmt].append(Blocks(one, facts, largest, scale is not None and scale.are_powers_of_two))
    return dict(found)


def _code(value: float, fmt: Format) -> Uint8Array:
    table = decode(np.arange(fmt.max_code + 1, dtype=np.uint8), fmt)
    return np.searchsorted(table, [value]).astype(np.uint8)


def _value(code: int, fmt: Format) -> float:
    return float(decode(np.array([code], np.uint8), fmt)[0])
