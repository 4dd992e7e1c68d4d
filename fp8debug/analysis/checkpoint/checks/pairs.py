"""Every tensor of codes has a scale, and every scale has its codes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fp8debug.analysis.checkpoint.checks.hit import Hit, Subject
from fp8debug.analysis.checkpoint.checks.names import ending_of, module_of, owner_of, starred, wrappers_of
from fp8debug.analysis.checkpoint.dialects.loading import dialects
from fp8debug.analysis.checkpoint.facts import CodeFacts
from fp8debug.analysis.checkpoint.records import CheckPlace, Quantised
from fp8debug.formats import ELEMENT_FORMATS, Format

_FAR_FROM_LARGEST = 16


def pairs(subject: Subject) -> Iterator[Hit]:
    """Codes without a scale, and scales without codes."""
    yield from _missing(subject)
    yield from _orphans(subject)


def _missing(subject: Subject) -> Iterator[Hit]:
    convention = subject.convention
    do_not_fit = {misfit.tensor for misfit in convention.misfits}
    without = [one for one in convention.quantised if one.grid_scale is None and one.name not in do_not_fit]
    if not _must_have_scales(subject):
        return
    endings = _usual_endings(subject)
    yield from _codes_that_nobody_reads(subject, endings)
    for one in without:
        expected = endings.get(starred(one.name)[0], endings[""])
        dtype = subject.store.tensors[one.name].dtype
        facts = subject.facts.codes.get(one.name)
        measured = "" if facts is None else f"; read as values they reach {facts.largest:g}, rms {facts.rms_codes:.3g}"
        is_cast = facts is not None and _is_of_weights(facts, ELEMENT_FORMATS[one.fmt])
        guess = ", as weights do that were cast as they are" if is_cast else ""
        yield Hit(
            "scale_missing",
            CheckPlace(
                one.name,
                f"ORPHAN WEIGHT {one.name}: {dtype} codes and no {expected}{measured}{guess}.",
                numbers={"dtype": dtype, "expected": expected},
                brief=f"{dtype}, no {expected}",
            ),
            of=len(convention.quantised),
            severity="watch" if is_cast else None,
            weight=one.n,
        )


def _is_of_weights(codes: CodeFacts, fmt: Format) -> bool:
    """Whether codes without a scale are as large as weights, and far from the end of their format, where scales put
    the largest of them."""
    return codes.largest < fmt.max / _FAR_FROM_LARGEST and codes.rms_codes < 1


def _codes_that_nobody_reads(subject: Subject, endings: dict[str, str]) -> Iterator[Hit]:
    """Bytes that are codes in the layers beside them, and here nothing, since no scale says so."""
    tensors = subject.store.tensors
    for name in codes_without_scale(subject):
        expected = endings.get(starred(name)[0], endings[""])
        place = CheckPlace(
            name,
            f"ORPHAN WEIGHT {name}: {tensors[name].dtype} bytes, codes in the layers beside it, and no {expected}.",
            brief=f"{tensors[name].dtype}, no {expected}",
        )
        yield Hit("scale_missing", place, of=len(subject.convention.quantised), weight=tensors[name].n)


def codes_without_scale(subject: Subject) -> tuple[str, ...]:
    """Tensors that no convention explains and that are called what codes are called in other layers."""
    patterns = {starred(one.name)[0] for one in subject.convention.quantised}
    return tuple(name for name in subject.convention.unknown if starred(name)[0] in patterns)


def _must_have_scales(subject: Subject) -> bool:
    """Codes that were cast without any scale are whole as they are, where all of them were."""
    convention = subject.convention
    if convention.orphan_scales or any(one.scales for one in convention.quantised):
        return True
    known = dialects().get(convention.dialect or "")
    return known is not None and any(one.kind == "weight" for one in known.scales)


def _usual_endings(subject: Subject) -> dict[str, str]:
    """What the scales of codes with a name like that are called, by its pattern; under "" what most are called."""
    named = [(one, ending_of(one.grid_scale.name)) for one in subject.convention.quantised if one.grid_scale]
    endings = {starred(one.name)[0]: ending for one, ending in named}
    counts = Counter(ending for _, ending in named) or Counter(map(ending_of, subject.convention.orphan_scales))
    endings[""] = counts.most_common(1)[0][0] if counts else "scale"
    return endings


def _orphans(subject: Subject) -> Iterator[Hit]:
    convention = subject.convention
    if not convention.orphan_scales:
        return
    plain = _plain_by_owner(subject)
    lonely = _by_rest(one for one in convention.quantised if one.grid_scale is None)
    for name in convention.orphan_scales:
        owner = owner_of(name)
        is_telling = any(word in ending_of(name) for word in ("weight_scale", "scale_inv", "scale_weight"))
        if not convention.quantised and not (is_telling and owner in plain):
            continue  # a parameter with such a name (`layer_scale_2`) in a model that nothing says is quantised
        message = f"ORPHAN SCALE {name}: "
        if owner in plain:
            dtype = subject.store.tensors[plain[owner]].dtype
            message += f"{plain[owner]} beside it is {dtype}: the scale of a layer that is not quantised."
        else:
            message += f"no codes of {owner or 'its layer'} are in the checkpoint."
            other = lonely.get(wrappers_of(owner)[1])
            if other is not None and other.module != owner:
                message += f" {other.name} has no scale; its name begins otherwise."
        yield Hit("scale_orphan", CheckPlace(name, message), severity="warning" if owner in plain else "error")


def _plain_by_owner(subject: Subject) -> dict[str, str]:
    """Matrices in high precision, by their own names and by what holds them."""
    found = {}
    for name in subject.convention.plain:
        if len(subject.store.tensors[name].shape) > 1:
            found[module_of(name)] = found[name] = name
    return found


def _by_rest(quantised: Iterator[Quantised]) -> dict[str, Quantised]:
    return {wrappers_of(one.module)[1]: one for one in quantised}
