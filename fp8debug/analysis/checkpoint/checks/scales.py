"""Numbers of scales that cannot be right, whatever they belong to."""

from __future__ import annotations

from collections.abc import Iterator

from fp8debug.analysis.checkpoint.checks.families import Family, families, place_of
from fp8debug.analysis.checkpoint.checks.hit import Hit, Subject
from fp8debug.analysis.checkpoint.facts import ScaleFacts
from fp8debug.analysis.checkpoint.records import CheckPlace, Quantised, Scale

_WORDS = {
    "input": "activations divided by it",
    "output": "results divided by it",
    "q": "queries divided by it",
    "k": "keys divided by it",
    "v": "values divided by it",
}


def scale_unusable(subject: Subject) -> Iterator[Hit]:
    """Scales that are NaN, infinite, negative, or zero where that is not harmless."""
    owners = {scale.name: one for one in subject.convention.quantised for scale in one.scales}
    for family in families(subject):
        for member in family.members:
            yield from _of_one(subject, family, member.scale, member.facts, owners.get(member.scale.name))


def _of_one(
    subject: Subject, family: Family, scale: Scale, facts: ScaleFacts, owner: Quantised | None
) -> Iterator[Hit]:
    found = [
        ("scale_nonfinite", facts.n_inf, "infinite", None),
        ("scale_nonfinite", facts.n_nan, "NaN", None),
        ("scale_negative", facts.n_negative, "negative", None),
        ("scale_zero", facts.n_zero, "zero", _severity_of_zero(subject, scale, owner)),
        ("scale_subnormal", facts.n_subnormal, "below 2^-126, FP32's smallest normal number", None),
    ]
    for check, n, words, severity in found:
        if n and severity != "harmless" and not (check == "scale_negative" and facts.n_inf):
            where = _where(facts, scale)
            how_many = f" is {words}" if facts.n == 1 else f": {n:,} of {facts.n:,} numbers are {words}{where}"
            message = f"{place_of(scale)}{how_many}{_consequence(check, scale, owner)}.{family.summary()}"
            yield Hit(
                check,
                CheckPlace(scale.name, message, numbers={"n": n, "of": facts.n, "kind": scale.kind}),
                of=family.n_of_kind,
                severity=severity,
                weight=n / facts.n + family.share_unusable,
            )


def _severity_of_zero(subject: Subject, scale: Scale, owner: Quantised | None) -> str | None:
    """None: as checks.toml says. A scale of zero is harmless over codes that are all zero, unless it divides."""
    if owner is None or scale.divides:
        return None
    codes = subject.facts.codes.get(owner.name)
    if codes is None:
        return "note"
    in_use = codes.n_lost > 0 if scale is owner.grid_scale else codes.largest > 0
    return None if in_use else "harmless"


def _where(facts: ScaleFacts, scale: Scale) -> str:
    if not facts.odd_at or facts.n == 1:
        return ""
    places = ", ".join(f"[{', '.join(map(str, place))}]" for place in facts.odd_at[:3])
    return f" (not finite and positive at {places}{', ...' if len(facts.odd_at) > 3 else ''})"


def _consequence(check: str, scale: Scale, owner: Quantised | None) -> str:
    if check == "scale_zero":
        if owner is None:
            return f": {_WORDS.get(scale.kind, 'what is divided by it')} become infinite"
        return ": its codes are divided by zero" if scale.divides else ": the codes that it belongs to are read as zero"
    if check == "scale_nonfinite":
        return (
            ": whatever passes this layer becomes NaN" if owner is None else ": its codes are read as infinity and NaN"
        )
    return ""


def scale_far_off(subject: Subject) -> Iterator[Hit]:
    """Scales that are far from those of all their siblings."""
    for family in families(subject):
        for outlier in family.outliers():
            times = 2.0 ** abs(outlier.bits)
            direction = "larger" if outlier.bits > 0 else "smaller"
            message = (
                f"{place_of(outlier.scale, outlier.at)} is {outlier.value:.3g}, {times:.3g} times {direction} than the "
                f"median of {family.n:,} siblings, {family.median:.3g}.{family.summary()}"
            )
            yield Hit(
                "scale_far_off",
                CheckPlace(
                    outlier.scale.name,
                    message,
                    numbers={"value": outlier.value, "median": family.median, "bits": outlier.bits},
                ),
                of=family.n_of_kind,
                severity="warning" if abs(outlier.bits) > _HOPELESS_BITS else None,
                weight=abs(outlier.bits),
            )


_HOPELESS_BITS = 20


def scale_one(subject: Subject) -> Iterator[Hit]:
    """Scales that are exactly 1.0, as nobody computes them; those of keys and values are another check's."""
    for family in families(subject):
        if family.kind in ("q", "k", "v"):
            continue
        ones = [member.scale for member in family.members if member.facts.n_one == member.facts.n]
        if not ones:
            continue
        ending = family.ending
        if len(ones) == len(family.members):
            message = (
                f"{ending} is exactly 1.0 in {len(ones):,} of {len(ones):,} tensors ({family.pattern}): a default?"
            )
            severity = None
        elif family.are_powers_of_two:
            continue
        else:
            message = (
                f"{ending} is exactly 1.0 in {len(ones):,} of {len(family.members):,} tensors "
                f"({family.pattern}), and another number in the rest: those were left at a default?"
            )
            severity = "watch"
        yield Hit("scale_one", CheckPlace(ones[0].name, message, numbers={"n": len(ones)}), severity=severity)


def powers_of_two(subject: Subject) -> Iterator[Hit]:
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
                message = f"{scale.name} has other numbers, such as {facts.median:.6g}."
                yield Hit("scale_not_power_of_two", CheckPlace(scale.name, message), of=len(judged))
    elif judged and len(are) == len(judged):
        message = f"all {len(are):,} scales of codes are powers of two, stored as {are[0].encoding}."
        yield Hit("scale_power_of_two", CheckPlace(are[0].name, message, numbers={"n": len(are)}))
