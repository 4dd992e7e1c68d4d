"""One factor for the whole tensor: a power of two, or the ratio of two formats' largest values."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import numpy as np

from fp8debug.analysis.checkpoint.reference.hypotheses.evidence import Evidence
from fp8debug.analysis.checkpoint.reference.hypotheses.own_scales import WRITERS_MAXIMA
from fp8debug.analysis.checkpoint.reference.hypotheses.trial import Reading, Trial, try_reading
from fp8debug.analysis.checkpoint.reference.hypotheses.wording import number, power, too_large

MAXIMA = {
    448.0: "E4M3's 448",
    240.0: "240, of E4M3FNUZ",
    224.0: "224, which some write E4M3FNUZ with",
    57344.0: "E5M2's 57344",
    28.0: "E3M2's 28",
    7.5: "E2M3's 7.5",
    6.0: "E2M1's 6",
    2688.0: "448 x 6, of NVFP4's two levels",
    1536.0: "256 x 6, of NVFP4 with blocks scaled to 4 or 6",
    127.0: "INT8's 127",
    7.0: "INT4's 7",
    1.0: "1",
}
"""Largest values that scales are computed for."""
_NEAR = 0.02


def one_factor(evidence: Evidence) -> Iterator[Trial]:
    """Named factors next to the one that fits best."""
    if evidence.best_factor == 0 or not np.isfinite(evidence.best_factor):
        return
    fitted = 1 / evidence.best_factor
    for reading in _named(evidence, fitted):
        found = try_reading(evidence, reading)
        if found is not None:
            yield found


def _named(evidence: Evidence, fitted: float) -> Iterator[Reading]:
    exponent = round(float(np.log2(abs(fitted))))
    nearest = float(np.ldexp(1.0, exponent)) * (1 if fitted > 0 else -1)
    if abs(fitted / nearest - 1) < _NEAR and nearest != 1:
        yield _reading(evidence, _power_name(evidence, nearest), _power_words(evidence, nearest), nearest)
    own = {evidence.fmt.max, *WRITERS_MAXIMA.get(evidence.fmt.name, ())} if evidence.fmt else set(MAXIMA)
    for made, read in permutations(MAXIMA, 2):
        factor = made / read
        if not own & {made, read}:
            continue
        # Values were divided by amax / made and are multiplied with amax / read.
        if abs(fitted / factor - 1) < _NEAR and factor != nearest:
            ratio = f"{too_large(factor)} ({number(made)}/{number(read)})"
            words = (
                f"the codes were made with a scale for the largest value {MAXIMA[made]}, and are read with one for "
                f"{MAXIMA[read]}: {ratio}"
            )
            if evidence.fmt is None:
                words = (
                    f"{ratio}, as codes would leave that were made with a scale for the largest value {MAXIMA[made]} "
                    f"and turned into these values with one for {MAXIMA[read]}"
                )
            yield _reading(evidence, "range_mismatch", words, factor)


def _power_name(evidence: Evidence, factor: float) -> str:
    if factor == -1:
        return "sign"
    return "e8m0_bias" if _has_exponents(evidence) and abs(factor) in (2, 0.5) else "power_of_two"


def _power_words(evidence: Evidence, factor: float) -> str:
    if factor == -1:
        return "all values have the wrong sign"
    if _has_exponents(evidence) and factor in (2, 0.5):
        return (
            f"the exponents of the block scales are off by one, as a bias of {126 if factor == 2 else 128} in the "
            f"place of 127 makes them: {too_large(factor)}"
        )
    return f"{too_large(factor)}, a power of two: {power(factor)}"


def _has_exponents(evidence: Evidence) -> bool:
    scale = evidence.quantised.grid_scale if evidence.quantised else None
    return scale is not None and scale.encoding == "E8M0"


def _reading(evidence: Evidence, name: str, message: str, factor: float) -> Reading:
    with np.errstate(all="ignore"):
        factors = evidence.factors / np.float32(factor)
    return Reading(name, message, factors, needs_codes=True)
