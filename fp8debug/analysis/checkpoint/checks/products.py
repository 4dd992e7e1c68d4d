"""Scales that are multiplied with each other before anything else is: the product has to be a normal FP32 number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fp8debug.analysis.checkpoint.checks.hit import Hit, Subject
from fp8debug.analysis.checkpoint.records import CheckPlace, Scale

_MIN_NORMAL = 2.0**-126
_LARGEST = float.fromhex("0x1.fffffep+127")


def scale_product_out_of_range(subject: Subject) -> Iterator[Hit]:
    """Products of a tensor's levels of scales, and of its scale with that of the layer's input."""
    inputs = {scale.module: scale for scale in subject.convention.scales if scale.kind == "input"}
    chains = [
        (one.name, (*one.scales, *([inputs[one.module]] if one.module in inputs else [])))
        for one in subject.convention.quantised
    ]
    judged = [(name, scales) for name, scales in chains if len(scales) > 1]
    for name, scales in judged:
        low, high = _range(subject, scales)
        if low is None or high is None:
            continue
        text = " x ".join(scale.name.removeprefix(scale.module).lstrip(".") for scale in scales)
        if low < _MIN_NORMAL:
            message = (
                f"{name}: {text} comes to {low:.3g}, below FP32's smallest normal number 1.18e-38: readers may get 0"
            )
        elif high > _LARGEST:
            message = f"{name}: {text} comes to {high:.3g}, above FP32's largest number 3.4e38: readers get infinity"
        else:
            continue
        yield Hit(
            "scale_product_out_of_range", CheckPlace(name, message, numbers={"low": low, "high": high}), len(judged)
        )


def _range(subject: Subject, scales: Sequence[Scale]) -> tuple[float | None, float | None]:
    """Smallest and largest magnitude of the product; None: a scale is unusable, which is said elsewhere."""
    low = high = 1.0
    for scale in scales:
        facts = subject.facts.scales.get(scale.name)
        if facts is None or not facts.smallest or not facts.largest or facts.smallest < 0:
            return None, None
        smallest, largest = facts.smallest, facts.largest
        low *= 1 / largest if scale.divides else smallest
        high *= 1 / smallest if scale.divides else largest
    return low, high
