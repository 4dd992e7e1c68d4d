"""Every tensor of codes has exactly one scale, and every scale has its codes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from fp8debug.analysis.checkpoint.checks.hit import Hit, Subject
from fp8debug.analysis.checkpoint.checks.names import ending_of, module_of, wrappers_of
from fp8debug.analysis.checkpoint.dialects.loading import dialects
from fp8debug.analysis.checkpoint.records import CheckPlace, Quantised, Scale
from fp8debug.analysis.checkpoint.values import can_be_numbers, numbers


def pairs(subject: Subject) -> Iterator[Hit]:
    """Codes without a scale, scales without codes, and codes with several scales of one kind."""
    spare = _spare_scales(subject)
    yield from _missing(subject)
    yield from _orphans(subject, {name for names in spare.values() for name in names})
    yield from _twice(subject, spare)


def _missing(subject: Subject) -> Iterator[Hit]:
    convention = subject.convention
    do_not_fit = {misfit.tensor for misfit in convention.misfits}
    without = [one for one in convention.quantised if one.grid_scale is None and one.name not in do_not_fit]
    if not without or not _must_have_scales(subject):
        return
    expected = _usual_ending(subject)
    for one in without:
        dtype = subject.store.tensors[one.name].dtype
        facts = subject.facts.codes.get(one.name)
        measured = "" if facts is None else f"; read as values they reach {facts.largest:g}, rms {facts.rms_codes:.3g}"
        yield Hit(
            "scale_missing",
            CheckPlace(
                one.name,
                f"ORPHAN WEIGHT {one.name}: {dtype} codes and no {expected}{measured}.",
                numbers={"dtype": dtype, "expected": expected},
                brief=f"{dtype}, no {expected}",
            ),
            of=len(convention.quantised),
            weight=one.n,
        )


def _must_have_scales(subject: Subject) -> bool:
    """Codes that were cast without any scale are whole as they are, where all of them were."""
    convention = subject.convention
    if convention.orphan_scales or any(one.scales for one in convention.quantised):
        return True
    known = dialects().get(convention.dialect or "")
    return known is not None and any(one.kind == "weight" for one in known.scales)


def _usual_ending(subject: Subject) -> str:
    endings = Counter(ending_of(one.grid_scale.name) for one in subject.convention.quantised if one.grid_scale)
    endings = endings or Counter(map(ending_of, subject.convention.orphan_scales))
    return endings.most_common(1)[0][0] if endings else "scale"


def _orphans(subject: Subject, told_already: set[str]) -> Iterator[Hit]:
    convention = subject.convention
    orphans = [name for name in convention.orphan_scales if name not in told_already]
    if not orphans:
        return
    plain = _plain_by_owner(subject)
    lonely = _by_rest(one for one in convention.quantised if one.grid_scale is None)
    for name in orphans:
        owner = _owner(name)
        if not convention.quantised and owner not in plain:
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


def _owner(scale_name: str) -> str:
    """What a scale belongs to by its name: `a.b` of `a.b.weight_scale` and of `a.b_scale_inv`."""
    ending = ending_of(scale_name)
    if ending.startswith(("weight", "scale", "input")) or "scale" not in ending:
        return module_of(scale_name)
    stem = scale_name[: len(scale_name) - len(ending) + ending.index("scale")].rstrip("_.#")
    return stem or module_of(scale_name)


def _plain_by_owner(subject: Subject) -> dict[str, str]:
    """Matrices in high precision, by their own names and by what holds them."""
    found = {}
    for name in subject.convention.plain:
        if len(subject.store.tensors[name].shape) > 1:
            found[module_of(name)] = found[name] = name
    return found


def _by_rest(quantised: Iterator[Quantised]) -> dict[str, Quantised]:
    return {wrappers_of(one.module)[1]: one for one in quantised}


def _spare_scales(subject: Subject) -> dict[str, list[str]]:
    """Scales that no reading uses although they stand beside codes that have one, by the name of the codes."""
    convention = subject.convention
    by_module = {one.module: one for one in convention.quantised if one.grid_scale is not None}
    spare: dict[str, list[str]] = {}
    for name in (*convention.orphan_scales, *convention.unknown):
        ending = ending_of(name)
        if ending.startswith(("weight_scale", "scale_weight", "scale_inv")) and _owner(name) in by_module:
            spare.setdefault(by_module[_owner(name)].name, []).append(name)
    return spare


def _twice(subject: Subject, spare: dict[str, list[str]]) -> Iterator[Hit]:
    for one in subject.convention.quantised:
        main = one.grid_scale
        if main is None:
            continue
        same_kind = [scale.name for scale in one.scales if scale.kind == "weight" and scale is not main]
        for other in (*same_kind, *spare.get(one.name, ())):
            are_same = _have_same_numbers(subject, main, other)
            told = "the same numbers" if are_same else "other numbers"
            yield Hit(
                "scale_twice",
                CheckPlace(
                    one.name, f"{one.name} has two scales, {ending_of(main.name)} and {ending_of(other)}, with {told}."
                ),
                severity="note" if are_same else None,
            )


def _have_same_numbers(subject: Subject, scale: Scale, other: str) -> bool:
    stored = subject.store.tensors[other]
    if stored.n != subject.store.tensors[scale.name].n or not can_be_numbers(stored.dtype):
        return False
    first = numbers(subject.store.whole(scale.name), scale.encoding)
    second = numbers(subject.store.whole(other), stored.dtype)
    return bool(np.array_equal(first.reshape(-1), second.reshape(-1), equal_nan=True))
