"""The rule that the writer made scales by, from the stored ones and the reference's largest values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fp8debug.analysis.checkpoint.reference.hypotheses.evidence import Evidence
from fp8debug.analysis.checkpoint.reference.hypotheses.gathering import gather
from fp8debug.analysis.checkpoint.reference.hypotheses.wording import cell_noun, number
from fp8debug.analysis.checkpoint.reference.pair import Pair
from fp8debug.formats import E4M3, Float32Array, Format, fake_quantize
from fp8debug.recipes.tensor import round_bf16

MAXIMA = {
    "E4M3": (448.0, 240.0, 224.0),
    "E4M3FNUZ": (240.0, 224.0, 448.0),
    "E5M2": (57344.0, 448.0),
    "E2M1": (6.0, 4.0),
}
_NEARLY_ALL = 0.99
_SAME = 3e-7
"""Relative: orders of division and multiplication in float32 differ by two units in the last place."""


@dataclass(frozen=True, slots=True)
class ScaleRule:
    """How scales follow from the reference."""

    rules: tuple[str, ...]
    """Those that fit most, in words: `amax / 448`; empty: none fits nearly all."""
    largest: float | None
    """What the largest value was divided by."""
    n_fit: int
    n: int
    """Scales that were looked at: those of blocks that are not all zero."""
    message: str


def name_scale_rule(pair: Pair) -> ScaleRule | None:
    """Name the rule that the writer made scales by; None: there are none, or all blocks are zero."""
    return rule_of(gather(pair))


def rule_of(evidence: Evidence) -> ScaleRule | None:
    """The same of lines that have been taken already."""
    if evidence.fmt is None or not evidence.grids:
        return None
    amax = evidence.cell_amax
    stored = evidence.cells.at_cells(evidence.factors)
    told = (amax > 0) & np.isfinite(stored) & (stored > 0)
    n = int(np.count_nonzero(told))
    if n == 0:
        return None
    fits = []
    for words, largest, scales in _rules(evidence, amax, evidence.fmt):
        with np.errstate(all="ignore"):
            same = np.abs(scales.astype(np.float64) / stored - 1) <= _SAME
        fits.append((int(np.count_nonzero(same & told)), words, largest))
    most = max(count for count, _, _ in fits)
    best = [(words, largest) for count, words, largest in fits if count == most] if most >= _NEARLY_ALL * n else []
    # The same powers of two follow from 448 rounded up and from 224 rounded down.
    best = [(words, largest) for words, largest in best if largest == best[0][1]]
    nouns = cell_noun(evidence, n)
    if not best:
        closest = next(words for count, words, _ in fits if count == most)
        message = f"no known rule gives the stored scales; {closest} gives {most:,} of {n:,}"
        return ScaleRule((), None, most, n, message)
    rules = tuple(words for words, _ in best)
    message = f"scales are {' or '.join(rules)}, in {most:,} of {n:,} {nouns}"
    if n == 1:
        message = f"the scale is {' or '.join(rules)}"
    return ScaleRule(rules, best[0][1], most, n, message)


def _rules(evidence: Evidence, amax: Float32Array, fmt: Format) -> Iterator[tuple[str, float, Float32Array]]:
    """Words, the largest value that is meant, and the scales; the simplest first."""
    second = _second_level(evidence)
    for largest in MAXIMA.get(fmt.name, (fmt.max,)):
        scales = amax / np.float32(largest)
        words = f"amax / {number(largest)}"
        if second is not None:
            with np.errstate(all="ignore"):
                yield f"{words}, rounded to E4M3", largest, fake_quantize(scales / second, E4M3) * second
            continue
        yield words, largest, scales
        up, down = np.frexp(scales)
        exponents = np.where(up == 0.5, down - 1, down)
        yield f"{words} rounded up to a power of two", largest, np.ldexp(np.float32(1), exponents)
        yield f"{words} rounded down to a power of two", largest, np.ldexp(np.float32(1), down - 1)
        yield f"{words} rounded to BF16", largest, round_bf16(scales)
        with np.errstate(all="ignore"):
            yield f"{words} rounded to FP16", largest, scales.astype(np.float16).astype(np.float32)


def _second_level(evidence: Evidence) -> np.float32 | None:
    quantised = evidence.quantised
    if quantised is None or len(quantised.scales) < 2:
        return None
    tensor = next((scale for scale in quantised.scales if scale.kind == "tensor"), None)
    grid = None if tensor is None else evidence.grids[tensor.name]
    return np.float32(grid[0, 0]) if grid is not None and grid.size == 1 else None
