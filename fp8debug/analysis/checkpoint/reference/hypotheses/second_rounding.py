"""Weights that had been rounded to few bits before they were rounded to these codes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fp8debug.analysis.checkpoint.reference.comparison import Hypothesis
from fp8debug.analysis.checkpoint.reference.hypotheses.cells import Cells, ratio
from fp8debug.analysis.checkpoint.reference.hypotheses.evidence import Evidence
from fp8debug.analysis.checkpoint.reference.hypotheses.rounding import Between, is_deterministic
from fp8debug.analysis.checkpoint.reference.hypotheses.trial import (
    Trial,
    explained_by,
    fitted_share,
    same_codes,
    tolerance,
)
from fp8debug.analysis.checkpoint.reference.hypotheses.wording import cell_noun, number
from fp8debug.formats import FORMATS, Float32Array, Format, fake_quantize
from fp8debug.recipes.mx import e8m0_scales

_SAME_CODES = 0.97
_BLOCKS = ((128, 128), (64, 64), (32, 32), (1, 128), (1, 32))
_FORMATS = ("E4M3", "E5M2")


def rounded_before(evidence: Evidence) -> Iterator[Trial]:
    """A first rounding that gives the very codes; else what two roundings leave in general."""
    if evidence.fmt is None or evidence.error > 8 * evidence.rounding_error:
        return
    # A scale that is a little too large gives the codes that a rounding to it would give, but its own error, too.
    if fitted_share(evidence) > 0.5:
        return
    if same_codes(evidence, evidence.factors, evidence.codes, evidence.fmt) >= _SAME_CODES:
        return
    for words, before in _first_roundings(evidence):
        with np.errstate(all="ignore"):
            codes = fake_quantize(before / evidence.factors, evidence.fmt)
        told = evidence.x != 0
        same = np.count_nonzero((codes == evidence.codes) & told) / max(1, int(np.count_nonzero(told)))
        if same >= _SAME_CODES:
            left = float(np.sum((codes - evidence.codes) ** 2 * evidence.factors**2, dtype=np.float64))
            message = f"weights were rounded twice: first to {words}, then to these codes{_ratios(evidence)}"
            yield Trial(Hypothesis("second_rounding", message, explained_by(evidence, left), None), 0, same)
            return
    yield from _in_general(evidence)


def _in_general(evidence: Evidence) -> Iterator[Trial]:
    assert evidence.fmt is not None
    if not 1.5 < evidence.error / evidence.rounding_error < 2.6 or not _gains_are_right(evidence):
        return
    between = Between(evidence)
    deterministic = is_deterministic(between)
    if between.at_neighbours < 0.98 or deterministic is False:
        return
    message = f"it looks as weights do that were rounded twice: gain 1 everywhere{_ratios(evidence)}"
    if deterministic is None:
        message += "; rounded stochastically they would look alike, and no value occurs often enough to tell"
    explained = min(1.0, evidence.rounding_error / (evidence.error - evidence.rounding_error))
    yield Trial(Hypothesis("second_rounding", message, explained, None), 1, 0.0)


def _ratios(evidence: Evidence) -> str:
    sqnr, healthy = (10 * np.log10(evidence.sum_x2 / error) for error in (evidence.error, evidence.rounding_error))
    return f" ({sqnr:.1f} dB; one rounding leaves {healthy:.1f} dB)"


def _gains_are_right(evidence: Evidence) -> bool:
    cells = evidence.check_cells
    x2 = cells.dot(evidence.x, evidence.x)
    gain = ratio(cells.dot(evidence.x, evidence.values), x2)
    noise = 4 * np.sqrt(evidence.error / evidence.sum_x2 / cells.sum(np.ones_like(evidence.x)))
    told = np.isfinite(gain)
    return bool(np.mean(np.abs(gain - 1)[told] < 2 * tolerance(evidence.fmt) + noise[told]) > 0.9)


def _first_roundings(evidence: Evidence) -> Iterator[tuple[str, Float32Array]]:
    """Sentence's end and the values after it."""
    assert evidence.fmt is not None
    tried = {evidence.fmt.name: evidence.fmt} | {name: FORMATS[name] for name in _FORMATS}
    for noun, cells, amax in _grids(evidence):
        for fmt in tried.values():
            for rule, scales in _scales(amax, fmt):
                spread = cells.spread(np.where(scales > 0, scales, 1))
                yield f"{fmt.name} with {rule.format(noun)}", fake_quantize(evidence.x / spread, fmt) * spread


def _scales(amax: Float32Array, fmt: Format) -> Iterator[tuple[str, Float32Array]]:
    largest = f"the largest value of each {{}} / {number(fmt.max)}"
    yield largest, amax / np.float32(fmt.max)
    yield f"{largest}, rounded up to a power of two", e8m0_scales(amax, fmt, "rceil")


def _grids(evidence: Evidence) -> Iterator[tuple[str, Cells, Float32Array]]:
    magnitude = np.abs(evidence.x)
    seen = {(evidence.cells.shape, evidence.cells.width)}
    yield cell_noun(evidence, 1), evidence.cells, evidence.cell_amax
    length = evidence.length
    parts = [(f"block of {lines} x {columns}", lines, columns) for lines, columns in _BLOCKS if columns < length]
    for noun, lines, columns in [("line", 1, length), ("matrix", 0, length), *parts]:
        # Blocks of several lines are whole only where all lines were taken.
        if lines != 1 and not evidence.is_whole:
            continue
        cells = evidence.cut(lines, columns)
        if (cells.shape, cells.width) not in seen:
            seen.add((cells.shape, cells.width))
            yield noun, cells, cells.largest(magnitude)
