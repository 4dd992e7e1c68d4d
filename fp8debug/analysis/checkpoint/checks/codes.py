"""What codes show of how they were made, without the values that they were made from."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fp8debug.analysis.checkpoint.checks.coded import Coded, by_format, value_of
from fp8debug.analysis.checkpoint.checks.hit import Hit, Subject
from fp8debug.analysis.checkpoint.checks.mixup import mixed_up, why_mixed_up
from fp8debug.analysis.checkpoint.records import CheckPlace
from fp8debug.formats import Format

_AT_ONE_MAXIMUM = 0.9
"""Share of blocks with the same largest code from which it is the maximum that a writer aimed at."""
_FEWEST_BLOCKS = 16
_FEWEST_UNKNOWN = 8
_SOME, _MANY = 0.02, 0.6
_CLIPPED, _HEAVILY = 0.001, 0.01
_SIGMAS, _FEWEST_CLIPPED = 2.0, 8
_KNOWN_MAXIMA = {
    ("E4M3", 240.0): "the largest value of E4M3FNUZ and of E4M3 with infinities: written for such hardware, or by it",
    ("E4M3", 224.0): "half of the format's largest: a margin of one bit",
    ("E4M3FNUZ", 224.0): "what some writers take for FNUZ, and where bytes of E4M3 end",
    ("E5M2", 57344.0 / 2): "half of the format's largest: a margin of one bit",
}


def codes(subject: Subject) -> Iterator[Hit]:
    """Codes of another format than the file says, clipped ones, maxima that are not the format's."""
    for fmt, tensors in by_format(subject).items():
        why = why_mixed_up(fmt, tensors)
        if why:
            yield from mixed_up(fmt, tensors, why)
            continue
        scaled = [one for one in tensors if one.quantised.grid_scale is not None]
        yield from _clipped(fmt, scaled)
        by_amax = [one for one in scaled if not one.is_power_of_two]
        yield from _other_maximum(fmt, by_amax)
        if fmt.bits == 8:  # scales of 8 bits round so coarsely that blocks of 4-bit codes may miss their maximum
            yield from _below_maximum(fmt, by_amax)
    yield from _all_zero(subject)


def _other_maximum(fmt: Format, judged: list[Coded]) -> Iterator[Hit]:
    """A writer that aims at another maximum than the format's: every block says so."""
    total = sum((one.largest for one in judged), np.zeros(fmt.sign_bit, np.int64))
    n = int(total.sum())
    code = int(np.argmax(total))
    value = value_of(code, fmt)
    known = _KNOWN_MAXIMA.get((fmt.name, value))
    if code == fmt.max_code or n < (2 if known else _FEWEST_UNKNOWN) or total[code] < _AT_ONE_MAXIMUM * n:
        return
    message = (
        f"the largest {fmt.name} code is {value:g}, not {fmt.max:g}, in {int(total[code]):,} of {n:,} blocks of "
        f"{len(judged):,} tensors: {known or 'what is above is not used'}. It costs up to "
        f"{np.log2(fmt.max / value):.1f} bits of range below, no precision above."
    )
    numbers = {"maximum": value, "share": float(total[code] / n)}
    yield Hit("code_maximum", CheckPlace(judged[0].quantised.name, message, numbers=numbers))


def _below_maximum(fmt: Format, judged: list[Coded]) -> Iterator[Hit]:
    """Tensors of which some blocks reach the maximum and some do not, or that do not although their siblings do."""
    several = [one for one in judged if one.n >= _FEWEST_BLOCKS]
    for one in several:
        top = int(np.flatnonzero(one.largest)[-1])
        below = int(one.largest[: top - 1].sum()) - one.facts.n_nan  # each may be the largest of its block
        if _SOME < below / one.n < _MANY:
            message = (
                f"{one.quantised.name}: in {below:,} of {one.n:,} blocks no code comes near {value_of(top, fmt):g}, "
                "which the others reach: their scale has a floor, belongs to blocks of another size, or was searched "
                "for the least error."
            )
            place = CheckPlace(
                one.quantised.name,
                message,
                numbers={"n_below": below, "n_blocks": one.n},
                brief=f"{below:,} of {one.n:,} blocks",
            )
            yield Hit("code_blocks_below", place, len(judged), weight=below / one.n)
    single = [one for one in judged if one.facts.block_histogram is None and not one.facts.n_nan]
    low = [one for one in single if 0 < one.facts.largest < fmt.max / 2]
    if len(single) >= _FEWEST_UNKNOWN and len(low) * 4 <= len(single):
        for one in low:
            message = (
                f"{one.quantised.name}: no code is larger than {one.facts.largest:g}, while {len(single) - len(low):,} "
                f"of {len(single):,} tensors come near {fmt.max:g}: its scale is larger than its values need."
            )
            place = CheckPlace(
                one.quantised.name,
                message,
                numbers={"largest": one.facts.largest},
                brief=f"largest {one.facts.largest:g}",
            )
            yield Hit("code_blocks_below", place, len(judged), weight=1 / one.facts.largest)


def _clipped(fmt: Format, judged: list[Coded]) -> Iterator[Hit]:
    """Tensors with far more codes at the maximum than scaling by the largest magnitude leaves there."""
    for one in judged:
        if _is_smooth(one, fmt):
            clipped = _n_clipped(one, fmt) / one.facts.n
            if clipped > _CLIPPED:
                message = (
                    f"{one.quantised.name}: {one.facts.n_largest:,} of {one.facts.n:,} codes are at {fmt.max:g}, "
                    f"{100 * clipped:.2g} % of all more than a scale by the largest magnitude leaves there: values "
                    "were clipped."
                )
                yield Hit(
                    "code_clipped",
                    CheckPlace(
                        one.quantised.name, message, numbers={"clipped": clipped}, brief=f"{100 * clipped:.2g} %"
                    ),
                    len(judged),
                    severity="warning" if clipped > _HEAVILY else None,
                    weight=clipped,
                )


def _n_clipped(one: Coded, fmt: Format) -> float:
    """Codes at the maximum beyond those that a smooth distribution and one or two for each block would leave there; 0
    where chance explains them."""
    sampled = max(one.facts.n_sampled, 1)
    sign = fmt.sign_bit
    before = one.facts.histogram[fmt.max_code - 1] + one.facts.histogram[sign + fmt.max_code - 1]
    expected = float(before) * one.facts.n / sampled
    counted = one.facts.block_histogram
    n_blocks = 1.0 if counted is None else one.n * one.facts.n_blocks / float(counted.sum())
    beyond = one.facts.n_largest - 1.25 * expected - 2 * n_blocks
    is_more = one.facts.n_largest >= _FEWEST_CLIPPED and beyond > _SIGMAS * np.sqrt(expected + 1)
    return beyond if is_more else 0.0


def _is_smooth(one: Coded, fmt: Format) -> bool:
    """Whether its values are spread out: those of ternary weights all sit at the maximum, and nothing was clipped."""
    of_magnitude = one.facts.histogram.reshape(2, -1).sum(axis=0)[1 : fmt.max_code + 1]
    return int(np.count_nonzero(of_magnitude)) * 2 > of_magnitude.size or int(np.count_nonzero(of_magnitude)) > 16


def _all_zero(subject: Subject) -> Iterator[Hit]:
    """Tensors of which every code is zero."""
    for one in subject.convention.quantised:
        facts = subject.facts.codes.get(one.name)
        if facts is not None and facts.n and facts.n_zero == facts.n:
            message = f"{one.name}: all {facts.n:,} codes are zero."
            yield Hit(
                "code_all_zero",
                CheckPlace(one.name, message, brief=f"{facts.n:,} codes"),
                len(subject.facts.codes),
                weight=facts.n,
            )
