"""Scales of the cache of keys and values: left at 1.0, or one for both."""

from __future__ import annotations

from collections.abc import Iterator

from fp8debug.analysis.checkpoint.checks.hit import Hit, Subject
from fp8debug.analysis.checkpoint.records import CheckPlace
from fp8debug.errors import some

_MIDPOINT = 464
"""From here on E4M3 clips: the middle between 448 and the next value that its exponent would give."""


def kv_scale_one(subject: Subject) -> Iterator[Hit]:
    """Scales of keys or values that are exactly 1.0, as a default is."""
    for kind, words in (("k", "keys"), ("v", "values")):
        numbers = _numbers(subject, kind)
        ones = [name for name, number in numbers.items() if number == 1]
        if ones:
            message = (
                f"the scale of {words} is 1.0 in {len(ones):,} of {len(numbers):,} layers ({some(ones)}): a default, "
                f"or right where no {words[:-1]} is beyond {_MIDPOINT}. Hold it against a run that has them (--run)"
            )
            yield Hit("kv_scale_one", CheckPlace(some(ones), message, numbers={"n": len(ones)}))


def kv_scale_shared(subject: Subject) -> Iterator[Hit]:
    """Keys and values with one scale, in every layer."""
    keys, values = _by_layer(subject, "k"), _by_layer(subject, "v")
    both = [layer for layer in keys if layer in values]
    same = [layer for layer in both if keys[layer][1] == values[layer][1] and keys[layer][1] != 1]
    if same and len(same) == len(both):
        names = [keys[layer][0] for layer in same]
        message = (
            f"keys and values have the same scale in {len(same):,} of {len(both):,} layers. Harmless where both are "
            "written and read with it; values written with a scale of their own come out wrong by the ratio of the two"
        )
        yield Hit("kv_scale_shared", CheckPlace(some(names), message, numbers={"n": len(same)}))


def _numbers(subject: Subject, kind: str) -> dict[str, float]:
    """The scales of that kind that are one number, by name."""
    found = {}
    for scale in subject.convention.scales:
        facts = subject.facts.scales.get(scale.name)
        if scale.kind == kind and facts is not None and facts.n == 1 and facts.median is not None:
            found[scale.name] = facts.median
    return found


def _by_layer(subject: Subject, kind: str) -> dict[str, tuple[str, float]]:
    """Name and number by the attention that holds it: `...self_attn` for `...self_attn.k_proj`."""
    numbers = _numbers(subject, kind)
    found = {}
    for scale in subject.convention.scales:
        if scale.name in numbers:
            parent, _, last = scale.module.rpartition(".")
            layer = parent if last.startswith((kind, "to_")) else scale.module
            found[layer] = (scale.name, numbers[scale.name])
    return found
