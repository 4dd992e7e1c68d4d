"""What a named reader demands of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fp8debug.analysis.checkpoint.checks.consumer import Consumer, consumer_named
from fp8debug.analysis.checkpoint.checks.hit import Hit, Subject
from fp8debug.analysis.checkpoint.grids import scale_numbers
from fp8debug.analysis.checkpoint.records import CheckPlace, Quantised, Scale
from fp8debug.analysis.checkpoint.values import Float64Array

_FNUZ_OF = {"E4M3": "E4M3FNUZ", "E5M2": "E5M2FNUZ"}


def demands(subject: Subject) -> Iterator[Hit]:
    """Codes, scales and sizes that the consumer cannot take."""
    if subject.consumer is None:
        return
    consumer = consumer_named(subject.consumer)
    n = len(subject.convention.quantised)
    for one in subject.convention.quantised:
        if one.fmt not in consumer.formats:
            yield _format(consumer, one, n)
            continue
        for scale in one.scales:
            if scale.kind == "weight":
                yield from _scale(subject, consumer, one, scale)
        yield from _sizes(consumer, one, n)
    if consumer.about and n:
        yield Hit("consumer_note", CheckPlace(subject.convention.quantised[0].name, consumer.about))


def _format(consumer: Consumer, one: Quantised, n: int) -> Hit:
    takes = " and ".join(consumer.formats)
    other = _FNUZ_OF.get(one.fmt)
    factor = 0.5 if other in consumer.formats else None
    if factor is not None:
        told = (
            f"; its bytes read as {other} are half as large, and 0x80 (-0) is NaN: the loader has to make it 0 and to "
            "double the scale"
        )
    elif one.fmt in _FNUZ_OF.values() and one.fmt.removesuffix("FNUZ") in consumer.formats:
        factor = 2.0
        told = f"; its bytes read as {one.fmt.removesuffix('FNUZ')} are twice as large, and 0x80 (NaN) is -0"
    else:
        told = ""
    message = f"{one.name} is {one.fmt}, {consumer.title} takes {takes}{told}."
    return Hit("consumer_format", CheckPlace(one.name, message, factor, brief=one.fmt), of=n, weight=one.n)


def _scale(subject: Subject, consumer: Consumer, one: Quantised, scale: Scale) -> Iterator[Hit]:
    n = len(subject.convention.quantised)
    unfit = _layout(consumer, scale)
    if unfit:
        place = CheckPlace(one.name, f"{scale.name} {unfit}.", brief=unfit)
        yield Hit("consumer_scales", place, of=n, weight=one.n)
    if not consumer.power_of_two or scale.encoding == "E8M0":
        return
    facts = subject.facts.scales.get(scale.name)
    if facts is not None and facts.are_powers_of_two:
        return
    inflation = _rounded_up(subject, scale)
    n_other = int(np.count_nonzero(inflation > 1))
    if n_other:
        low, mean, high = inflation.min(), inflation.mean(), inflation.max()
        direction = "small" if scale.divides else "large"
        factors = f"{low:.3g} times too {direction}"
        if inflation.size > 1:
            factors = f"{low:.3g} to {high:.3g} times too {direction}, on average {mean:.3g}"
        yield Hit(
            "consumer_power_of_two",
            CheckPlace(
                one.name,
                f"{n_other:,} of {inflation.size:,} numbers of {scale.name} are no powers of two. Rounded up with the "
                f"codes unchanged, blocks come out {factors}; codes made again cost a second rounding.",
                numbers={
                    "n_not_power_of_two": n_other, "n": inflation.size, "gain_min": float(low),
                    "gain_mean": float(mean), "gain_max": float(high),
                },
                brief=factors,
            ),
            of=n,
            weight=float(mean),
        )  # fmt: skip


def _layout(consumer: Consumer, scale: Scale) -> str:
    """Why scales of that kind cannot be taken; empty: they can."""
    if scale.layout not in consumer.layouts:
        return f"has one number a {scale.layout}, {consumer.title} takes one a {' or '.join(consumer.layouts)}"
    if scale.layout == "block" and consumer.blocks and scale.block not in consumer.blocks:
        takes = " or ".join(f"{lines} x {columns}" for lines, columns in consumer.blocks)
        assert scale.block is not None
        return f"has blocks of {scale.block[0]} x {scale.block[1]}, {consumer.title} takes {takes}"
    if consumer.encodings and scale.encoding not in consumer.encodings:
        return f"is {scale.encoding}, {consumer.title} takes {' or '.join(consumer.encodings)}"
    return ""


def _rounded_up(subject: Subject, scale: Scale) -> Float64Array:
    """By how much each finite, positive number grows when it is rounded up to a power of two: [1, 2)."""
    stored = scale_numbers(subject.store, scale).reshape(-1)
    # frexp: stored = m 2^e with m in [0.5, 1), so that the next power of two is 2^e, or stored itself where m is 0.5.
    significands = np.frexp(stored[np.isfinite(stored) & (stored > 0)].astype(np.float64))[0]
    grown: Float64Array = np.where(significands == 0.5, 1.0, 1 / significands)
    return grown


def _sizes(consumer: Consumer, one: Quantised, n: int) -> Iterator[Hit]:
    lines = one.shape[-2] if len(one.shape) > 1 else 1
    axes = (("lines", lines, consumer.lines_multiple), ("columns", one.length, consumer.columns_multiple))
    bad = [f"{size} {axis} are no multiple of {multiple}" for axis, size, multiple in axes if size % multiple]
    if bad:
        message = f"{one.name} {list(one.shape)}: {' and '.join(bad)}, as {consumer.title} takes them."
        yield Hit("consumer_sizes", CheckPlace(one.name, message, brief=", ".join(bad)), of=n, weight=one.n)
