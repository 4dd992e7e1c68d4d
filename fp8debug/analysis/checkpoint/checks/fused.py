"""Layers that readers run as one GEMM, q with k and v, gate with up, while each has a scale of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from fp8debug.analysis.checkpoint.checks.hit import Hit, Subject
from fp8debug.analysis.checkpoint.checks.siblings import fused_groups, name_of_parts, number_of
from fp8debug.analysis.checkpoint.records import CheckPlace, Quantised
from fp8debug.formats import FORMATS, decode, fake_quantize

_SAME = 1e-6
"""Relative difference of scales that are one, stored with different roundings."""


def fused_scales_differ(subject: Subject) -> Iterator[Hit]:
    """Parts of what readers fuse that have different scales, and what it costs to give them one."""
    groups = list(fused_groups(subject))
    for parts in groups:
        factors = [number_of(subject, part) for part in parts]
        known = [factor for factor in factors if factor]
        if len(known) == len(parts) and max(known) - min(known) > _SAME * max(known) and min(known) > 0:
            yield Hit("fused_scales_differ", _place(subject, parts, known), len(groups), weight=max(known) / min(known))


def _place(subject: Subject, parts: Sequence[Quantised], factors: Sequence[float]) -> CheckPlace:
    largest = max(factors)
    names = [part.module.rpartition(".")[2] for part in parts]
    gains = {name: largest / factor for name, factor in zip(names, factors, strict=True)}
    kept = {
        name: _kept_db(subject, part, factor / largest)
        for name, part, factor in zip(names, parts, factors, strict=True)
    }
    scales = ", ".join(f"{name} {factor:.4g}" for name, factor in zip(names, factors, strict=True))
    wrong = ", ".join(f"{name} {gain:.2f} times" for name, gain in gains.items() if gain != 1)
    known = {name: db for name, db in kept.items() if db is not None}
    costs = ", ".join(f"{name} {db:.1f}" for name, db in known.items())
    after = (
        f"; with codes made anew for it, they keep {costs} dB of the original weights ({_baseline(parts[0]):.1f} with "
        "scales of their own)"
        if costs
        else ""
    )
    parent = parts[0].module.rpartition(".")[0] or "the top level"
    message = (
        f"{parent}: scales are {scales}. A reader that takes the largest for all and keeps the codes makes parts of "
        f"it too large, {wrong}{after}"
    )
    numbers: dict[str, float | int | str | None] = {f"gain_{name}": gain for name, gain in gains.items()}
    numbers |= {f"unchanged_codes_sqnr_db_{name}": _unchanged_db(gain) for name, gain in gains.items()}
    numbers |= {f"requantised_sqnr_db_{name}": db for name, db in known.items()}
    return CheckPlace(name_of_parts(parts), message, numbers=numbers, brief=f"{scales}; too large: {wrong}")


def _unchanged_db(gain: float) -> float | None:
    """SQNR of values that all come out `gain` times too large: -20 log10 |gain - 1|."""
    return None if gain == 1 else -20 * math.log10(abs(gain - 1))


def _baseline(part: Quantised) -> float:
    return FORMATS[part.fmt].baseline_sqnr_db


def _kept_db(subject: Subject, part: Quantised, ratio: float) -> float | None:
    """SQNR against the original weights once codes are made anew for a larger scale.

    The error of a second rounding is independent of that of the first: their powers add. None: it is not known, since
    the codes were not read, or they have scales of blocks that would be rounded too.
    """
    facts = subject.facts.codes.get(part.name)
    if facts is None or not facts.n_sampled or len(part.scales) > 1:
        return None
    fmt = FORMATS[part.fmt]
    values = decode(np.arange(1 << fmt.bits, dtype=np.uint8), fmt)
    weights = np.where(np.isfinite(values), facts.histogram, 0).astype(np.float64)
    x = np.where(np.isfinite(values), values, 0).astype(np.float64)
    again = fake_quantize((x * ratio).astype(np.float32), fmt).astype(np.float64) / ratio
    signal, noise = float(weights @ (x * x)), float(weights @ ((x - again) ** 2))
    if not signal:
        return None
    return -10 * math.log10(10 ** (-fmt.baseline_sqnr_db / 10) + noise / signal)
