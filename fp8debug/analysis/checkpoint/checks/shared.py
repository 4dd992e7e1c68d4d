"""Scales that are the same where they should differ: copied, or one kept for several."""

from __future__ import annotations

import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from fp8debug.analysis.checkpoint.checks.hit import Hit, Subject
from fp8debug.analysis.checkpoint.checks.siblings import fused_groups, name_of_parts, number_of
from fp8debug.analysis.checkpoint.facts import CodeFacts
from fp8debug.analysis.checkpoint.records import CheckPlace, Quantised, Scale
from fp8debug.errors import some
from fp8debug.formats import FORMATS

_F16_STEPS = 2.0**11
_F32_ROUNDING = 2.0**-22
_MAXIMA = (448.0, 240.0, 224.0)
"""What writers divide largest magnitudes by."""
_NEARLY_ALL = 0.9
_MANY = 16
_FEW = 3
"""Layers in which something has to be so before it is more than chance."""
_MORE_THAN_CHANCE = 0.25
"""Share of all fused groups: the largest magnitudes of BF16 weights are equal in up to five of a hundred."""


def scale_shared_by_parts(subject: Subject) -> Iterator[Hit]:
    """q, k and v, or gate and up, share one scale although each was quantised with one of its own.

    With one scale for all, from the largest magnitude, the codes of one part alone reach the format's largest value.
    Two parts whose magnitudes are within a rounding step of each other both do, by chance: it takes several layers, and
    of many more than a few.
    """
    fused = list(fused_groups(subject))
    groups = [parts for parts in fused if _share(subject, parts)]
    hits = [parts for parts in groups if _all_reach(subject, parts)]
    if len(hits) < max(_FEW, _MORE_THAN_CHANCE * len(fused)) or 2 * len(hits) <= len(groups):
        return
    for parts in hits:
        names = ", ".join(part.module.rpartition(".")[2] for part in parts)
        number = number_of(subject, parts[0])
        message = (
            f"{parts[0].module.rpartition('.')[0]}: {names} share the scale {number:.4g}, and the codes of each reach "
            f"{FORMATS[parts[0].fmt].max:g}: each was quantised with a scale of its own, of which one is left"
        )
        place = CheckPlace(name_of_parts(parts), message, numbers={"scale": number}, brief=f"scale {number:.4g}")
        yield Hit("scale_shared_by_parts", place, len(groups))


def _share(subject: Subject, parts: Sequence[Quantised]) -> bool:
    numbers = {number_of(subject, part) for part in parts}
    return len(numbers) == 1 and None not in numbers


def _all_reach(subject: Subject, parts: Sequence[Quantised]) -> bool:
    known = [subject.facts.codes.get(part.name) for part in parts]
    return all(one is not None and one.n_largest > 0 and _has_many_values(one) for one in known)


def _has_many_values(codes: CodeFacts) -> bool:
    """Those of ternary weights all end at the same value, in every layer."""
    return int(np.count_nonzero(codes.histogram.reshape(2, -1).sum(axis=0))) > min(_MANY, codes.histogram.size // 4)


def scale_copied(subject: Subject) -> Iterator[Hit]:
    """Different tensors with bit-equal scales that are no powers of two: one was written for another."""
    same: dict[bytes, list[Quantised]] = defaultdict(list)
    single: list[float] = []
    for one in subject.convention.quantised:
        scale = one.grid_scale
        facts = None if scale is None else subject.facts.scales.get(scale.name)
        if scale is None or facts is None or facts.are_powers_of_two or facts.smallest is None:
            continue
        if facts.n == 1 and facts.smallest:
            single.append(1 / facts.smallest if scale.divides else facts.smallest)
        by_chance = facts.n == 1 and (not facts.smallest or _has_few_digits(facts.smallest, scale, one.fmt))
        if (facts.n == 1 or facts.smallest != facts.largest) and not by_chance:
            same[_digest(subject, one, scale.name)].append(one)
    if _are_of_bf16(single):
        same = {digest: ones for digest, ones in same.items() if _n_numbers(subject, ones[0]) > 1}
    for tensors in same.values():
        apart = _of_other_codes(subject, tensors)
        is_constant = _n_numbers(subject, tensors[0]) == 1 and len(apart) > max(_FEW, len(single) / _FEW)
        if len(apart) >= 2 and not _are_parts(apart) and not is_constant:
            yield _copied(subject, apart)


def _has_few_digits(number: float, scale: Scale, fmt: str) -> bool:
    """Whether a scale is one of so few numbers that two of a hundred tensors have the same by chance: it is stored in
    16 bits, or follows from a largest magnitude in BF16 or F16."""
    if scale.encoding not in ("F32", "F64"):
        return True
    maxima = {FORMATS[fmt].max, *_MAXIMA}
    largest_values = [most / number if scale.divides else number * most for most in maxima]
    mantissas = [math.frexp(value)[0] * _F16_STEPS for value in largest_values]
    return any(abs(mantissa - round(mantissa)) < _F16_STEPS * _F32_ROUNDING for mantissa in mantissas)


def _are_of_bf16(numbers: Sequence[float]) -> bool:
    """Whether nearly all are numbers of 8 bits times one constant, as largest magnitudes in BF16 give them."""
    mantissas = np.frexp(np.unique(np.abs(numbers)))[0]
    if len(mantissas) < _FEW + 1:
        return False
    steps = np.frexp(np.arange(128, 256)[:, None] * mantissas / mantissas[0])[0] * 256
    return bool(np.max(np.mean(np.abs(steps - np.rint(steps)) < 256 * _F32_ROUNDING, axis=1)) > _NEARLY_ALL)


def _n_numbers(subject: Subject, one: Quantised) -> int:
    scale = one.grid_scale
    return 0 if scale is None else subject.facts.scales[scale.name].n


def _digest(subject: Subject, quantised: Quantised, scale: str) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    digest.update(repr((subject.store.tensors[scale].shape, quantised.fmt)).encode())
    for chunk in subject.store.chunks(scale):
        digest.update(chunk.data)
    return digest.digest()


def _of_other_codes(subject: Subject, tensors: Sequence[Quantised]) -> list[Quantised]:
    """One of each content: a layer that is stored twice has its scales twice."""
    found: dict[bytes | None, Quantised] = {}
    for one in tensors:
        facts = subject.facts.codes.get(one.name)
        if facts is None or facts.largest:  # writers give what is all zero any scale
            found.setdefault(None if facts is None else facts.histogram.tobytes(), one)
    return list(found.values())


def _are_parts(tensors: Sequence[Quantised]) -> bool:
    """Whether they are of one parent, or experts of one layer: writers give these one scale on purpose."""
    return len({re.sub(r"\.experts\..*", "", one.module.rpartition(".")[0]) for one in tensors}) == 1


def _copied(subject: Subject, tensors: Sequence[Quantised]) -> Hit:
    first = tensors[0].grid_scale
    assert first is not None
    facts = subject.facts.scales[first.name]
    shown = f"the scale {facts.median:.6g}" if facts.n == 1 else f"the same {facts.n:,} scales, bit by bit"
    names = [one.name for one in tensors]
    message = f"{some(names)} have {shown}, though their codes differ"
    # One number may be a constant that somebody chose; a whole grid is never the same by chance.
    severity = "watch" if facts.n == 1 else "warning"
    place = CheckPlace(", ".join(names), message, numbers={"n_scales": facts.n, "n_tensors": len(names)})
    return Hit("scale_copied", place, severity=severity, weight=math.log2(facts.n + 1) * len(names))
