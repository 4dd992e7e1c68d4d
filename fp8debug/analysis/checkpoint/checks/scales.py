"""Numbers of scales that cannot be right, whatever they belong to."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fp8debug.analysis.checkpoint.checks.coded import by_format, value_of
from fp8debug.analysis.checkpoint.checks.families import Family, families, place_of
from fp8debug.analysis.checkpoint.checks.hit import Hit, Subject
from fp8debug.analysis.checkpoint.facts import ScaleFacts
from fp8debug.analysis.checkpoint.grids import scale_numbers
from fp8debug.analysis.checkpoint.records import CheckPlace, Quantised, Scale

_WORDS = {
    "input": "activations divided by it",
    "output": "results divided by it",
    "q": "queries divided by it",
    "k": "keys divided by it",
    "v": "values divided by it",
}


_HOPELESS_BITS = 20
_HARMLESS = "harmless"
_MANY_LOST = 0.1


def scales(subject: Subject) -> Iterator[Hit]:
    """Scales that are no usable number, far from their siblings, or exactly 1.0; powers of two or not."""
    owners = {scale.name: one for one in subject.convention.quantised for scale in one.scales}
    for family in families(subject):
        for member in family.members:
            yield from _unusable(subject, family, member.scale, member.facts, owners.get(member.scale.name))
        yield from _far_off(family)
        yield from _ones(family)
    yield from _powers_of_two(subject)


def _unusable(
    subject: Subject, family: Family, scale: Scale, facts: ScaleFacts, owner: Quantised | None
) -> Iterator[Hit]:
    found = [
        ("scale_nonfinite", facts.n_inf + facts.n_nan, _nonfinite_words(scale, facts), None),
        ("scale_negative", facts.n_negative, "negative", None),
        ("scale_zero", facts.n_zero, "zero", _severity_of_zero(subject, scale, owner)),
        ("scale_subnormal", facts.n_subnormal, "below 2^-126, FP32's smallest normal number", None),
    ]
    for check, n, words, severity in found:
        if n and severity != _HARMLESS:
            how_many = (
                f" is {words}"
                if facts.n == 1
                else f": {n:,} of {facts.n:,} numbers {'is' if n == 1 else 'are'} {words}{_where(facts, check, n)}"
            )
            brief = words if facts.n == 1 else f"{n:,} of {facts.n:,} {words}"
            message = f"{place_of(scale)}{how_many}{_consequence(subject, check, scale, owner)}.{family.summary}"
            yield Hit(
                check,
                CheckPlace(scale.name, message, numbers={"n": n, "of": facts.n, "kind": scale.kind}, brief=brief),
                of=family.n_of_kind,
                severity=severity,
                weight=n / facts.n + family.share_unusable,
            )


def _nonfinite_words(scale: Scale, facts: ScaleFacts) -> str:
    if scale.encoding == "E8M0":
        return "NaN (byte 0xFF)"
    if facts.n_inf and facts.n_nan:
        return f"infinite ({facts.n_inf:,}) or NaN ({facts.n_nan:,})"
    return "NaN" if facts.n_nan else "infinite"


def _severity_of_zero(subject: Subject, scale: Scale, owner: Quantised | None) -> str | None:
    """None: as checks.toml says. A scale of zero is harmless over codes that are all zero, unless it divides."""
    if owner is None or scale.divides:
        return None
    codes = subject.facts.codes.get(owner.name)
    if codes is None:
        return "note"
    if scale is not owner.grid_scale:
        return None if codes.largest > 0 else _HARMLESS
    if not codes.n_lost:
        return _HARMLESS
    # Under a second level, E4M3 ends at 2.2e-6 of the largest block: what is smaller is nothing beside it.
    is_underflow = scale.encoding == "E4M3" and len(owner.scales) > 1 and codes.n_lost < _MANY_LOST * codes.n_blocks
    return "note" if is_underflow else None


def _where(facts: ScaleFacts, check: str, n: int) -> str:
    """` (at [0, 3], [0, 7], ...)`; empty where other numbers are unusable, too, and places would be mixed up."""
    if check == "scale_subnormal" or facts.n_inf + facts.n_nan + facts.n_zero + facts.n_negative > n:
        return ""
    places = ", ".join(f"[{', '.join(map(str, place))}]" for place in facts.odd_at[:3])
    return f" (at {places}{', ...' if n > 3 else ''})"


def _consequence(subject: Subject, check: str, scale: Scale, owner: Quantised | None) -> str:
    if check == "scale_zero":
        lost = None if owner is None or scale.divides else subject.facts.codes.get(owner.name)
        if owner is not None and lost is not None and lost.n_blocks > 1 and scale is owner.grid_scale:
            return f", {lost.n_lost:,} of them over codes that are not all zero, which are read as zero"
        if owner is None:
            return f": {_WORDS.get(scale.kind, 'what is divided by it')} become infinite"
        return ": its codes are divided by zero" if scale.divides else ": the codes that it belongs to are read as zero"
    if check == "scale_nonfinite":
        return (
            ": whatever passes this layer becomes NaN" if owner is None else ": its codes are read as infinity and NaN"
        )
    return ""


def _far_off(family: Family) -> Iterator[Hit]:
    for one in family.outliers:
        times, direction = 2.0 ** abs(one.bits), "larger" if one.bits > 0 else "smaller"
        message = (
            f"{place_of(one.scale, one.at)} is {one.value:.3g}, {times:.3g} times {direction} than the median of "
            f"{family.n:,} siblings, {family.median:.3g}.{family.summary}"
        )
        numbers = {"value": one.value, "median": family.median, "bits": one.bits}
        yield Hit(
            "scale_far_off",
            CheckPlace(
                one.scale.name, message, numbers=numbers, brief=f"{one.value:.3g}, {times:.3g} times {direction}"
            ),
            of=family.n_of_kind,
            severity="warning" if abs(one.bits) > _HOPELESS_BITS else None,
            weight=abs(one.bits),
        )


def _ones(family: Family) -> Iterator[Hit]:
    """Scales of exactly 1.0, as nobody computes them; those of keys and values are another check's."""
    members = [member for member in family.members if member.is_in_use and member.facts.n]
    ones = [member.scale for member in members if member.facts.n_one == member.facts.n]
    is_default = len(ones) == len(members)
    if not ones or family.kind in ("q", "k", "v") or (family.are_powers_of_two and not is_default):
        return
    rest = ": a default?" if is_default else ", and another number in the rest: left at a default?"
    message = f"{family.ending} is exactly 1.0 in {len(ones):,} of {len(members):,} tensors ({family.pattern}){rest}"
    place = CheckPlace(ones[0].name, message, numbers={"n": len(ones)})
    yield Hit("scale_one", place, severity=None if is_default else "watch")


def _powers_of_two(subject: Subject) -> Iterator[Hit]:
    """Whether the scales of codes are powers of two, and whether the configuration says so."""
    judged = [
        (scale, subject.facts.scales[scale.name])
        for one in subject.convention.quantised
        for scale in one.scales
        if scale.kind == "weight" and scale.encoding != "E8M0" and scale.name in subject.facts.scales
    ]
    judged = [(scale, facts) for scale, facts in judged if facts.n_zero + facts.n_nan + facts.n_inf < facts.n]
    are = [scale for scale, facts in judged if facts.are_powers_of_two]
    if subject.convention.power_of_two:
        for scale, facts in judged:
            if not facts.are_powers_of_two:
                message = f"{scale.name} has other numbers, such as {_other_number(subject, scale):.6g}."
                yield Hit("scale_not_power_of_two", CheckPlace(scale.name, message), of=len(judged))
    elif len(judged) > 1 and len(are) == len(judged):
        ends = _range_of_maxima(subject)
        message = f"all {len(are):,} scales of codes are powers of two, stored as {are[0].encoding}{ends}."
        yield Hit("scale_power_of_two", CheckPlace(are[0].name, message, numbers={"n": len(are)}))


def _range_of_maxima(subject: Subject) -> str:
    """Between which codes blocks end, as scales that are powers of two leave them; empty: nothing was measured."""
    texts = []
    for fmt, tensors in by_format(subject).items():
        total = np.sum([one.largest for one in tensors if one.is_power_of_two], axis=0)
        reached = np.flatnonzero(total)
        if reached.size:
            low, high = (value_of(int(code), fmt) for code in reached[[0, -1]])
            words = f"are {low:g}" if low == high else f"lie between {low:g} and {high:g}"
            texts.append(f"; the largest {fmt.name} codes of their blocks {words}")
    return "".join(texts)


def _other_number(subject: Subject, scale: Scale) -> float:
    """A number of a scale tensor that is no power of two."""
    stored = scale_numbers(subject.store, scale).reshape(-1)
    others = stored[np.isfinite(stored) & (stored != 0) & (np.frexp(np.abs(stored))[0] != 0.5)]
    return float(others[0])
