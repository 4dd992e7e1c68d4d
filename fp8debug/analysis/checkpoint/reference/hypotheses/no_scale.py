"""Codes that no scale is applied to: the factors that they need, as the reference tells them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fp8debug.analysis.checkpoint.reference.hypotheses.cells import Cells, Rows, ratio
from fp8debug.analysis.checkpoint.reference.hypotheses.evidence import Evidence
from fp8debug.analysis.checkpoint.reference.hypotheses.own_scales import WRITERS_MAXIMA
from fp8debug.analysis.checkpoint.reference.hypotheses.sample import MOST_ELEMENTS
from fp8debug.analysis.checkpoint.reference.hypotheses.sums import finite
from fp8debug.analysis.checkpoint.reference.hypotheses.trial import Reading, Trial, try_reading
from fp8debug.analysis.checkpoint.reference.hypotheses.wording import number
from fp8debug.formats import FORMATS, Float32Array, Format, fake_quantize
from fp8debug.metrics import Float64Array
from fp8debug.recipes.mx import SCALE_RULES, e8m0_scales

_PARTITIONS = ((0, 0), (1, 0), (0, 1), (128, 128), (64, 64), (32, 32), (1, 128), (1, 64), (1, 32), (1, 16))
"""Lines x columns that share a factor, 0: all; coarse ones first."""
_SAME_CODES = 0.97
_ELEMENTS_A_CELL = 16
_AS_ROUNDED = 2.0
"""What fitted factors leave at most, over what rounding leaves."""
_MX, _NV = (1, 32), (1, 16)


def without_scale(evidence: Evidence) -> Iterator[Trial]:
    """The factors that codes without a scale need: those that give the very codes, else those that fit."""
    quantised = evidence.quantised
    if quantised is None or quantised.grid_scale is not None or evidence.fmt is None:
        return
    if evidence.same_codes(evidence.factors) >= _SAME_CODES:
        return  # the codes are the values: it is not a scale that they lack
    partitions = _partitions(evidence)
    for size, cells in partitions:
        amax = _amax(evidence, cells, size)
        for scales, rule in _rules(evidence, amax, size):
            factors = cells.spread(np.where(scales > 0, scales, 1))
            if evidence.same_codes(factors) >= _SAME_CODES:
                words = f"{_needed(size, cells, _grid_of(evidence, scales))}: {rule}"
                yield from _tried(evidence, words, factors, 0)
                return
    for size, cells in partitions:
        if cells.n * _ELEMENTS_A_CELL > evidence.n:
            continue
        xc, c2 = cells.dot(evidence.x, evidence.codes), cells.dot(evidence.codes, evidence.codes)
        fitted = ratio(xc, c2)
        left = evidence.sum_x2 - float(np.nansum(ratio(xc * xc, c2)))
        if left > _AS_ROUNDED * evidence.rounding_error:  # any factor takes most of the error of raw codes away
            continue
        words = f"{_needed(size, cells, _grid_of(evidence, fitted))}, fitted to the reference"
        found = list(_tried(evidence, words, cells.spread(np.nan_to_num(fitted)), cells.n))
        if found:
            yield from found
            return


def _tried(evidence: Evidence, words: str, factors: Float32Array, freedom: int) -> Iterator[Trial]:
    found = try_reading(evidence, Reading("no_scale", words, factors, freedom=freedom))
    if found is not None:
        yield found


def _partitions(evidence: Evidence) -> list[tuple[tuple[int, int] | None, Cells]]:
    """Cells by the size of their blocks; None: one for the whole tensor. Those of which a size is all are one."""
    found: dict[tuple[int, ...], tuple[tuple[int, int] | None, Cells]] = {}
    whole = Cells(np.zeros(len(evidence.lines), np.intp), evidence.length, evidence.length)
    for size, cells in [(None, whole), *((size, evidence.cut(*size)) for size in _PARTITIONS)]:
        found.setdefault((*cells.shape, cells.width), (size, cells))
    return list(found.values())


def _amax(evidence: Evidence, cells: Cells, size: tuple[int, int] | None) -> Float32Array:
    """Largest magnitude of the reference in each cell, lines that are not sampled included."""
    if evidence.is_whole:
        return cells.largest(np.abs(evidence.x))
    most = np.zeros(cells.shape, np.float32)
    for index, (first, last) in enumerate(_spans(evidence, cells.numbers, size)):
        step = 1 + MOST_ELEMENTS // 4 // max(1, evidence.length)
        for start in range(first, last, step):
            stop = min(last, start + step)
            band = np.abs(finite(evidence.pair.reference_lines.values(start, stop)))
            part = Cells(np.zeros(stop - start, np.intp), cells.width, evidence.length)
            most[index] = np.maximum(most[index], part.largest(band)[0])
    return most


def _spans(evidence: Evidence, numbers: Rows, size: tuple[int, int] | None) -> list[tuple[int, int]]:
    """First and last line (exclusive) of rows of cells, numbered as `Evidence.cut` does."""
    lines, shape = evidence.pair.lines, evidence.pair.tensor.shape
    if size is None:
        return [(0, lines)]
    matrix = shape[-2] if len(shape) > 1 else 1
    height = min(size[0] or matrix, matrix)
    in_matrix = -(-matrix // height)
    firsts = numbers // in_matrix * matrix + numbers % in_matrix * height
    lasts = np.minimum(firsts + height, (numbers // in_matrix + 1) * matrix)
    return [(int(first), min(int(last), lines)) for first, last in zip(firsts, lasts, strict=True)]


def _rules(evidence: Evidence, amax: Float32Array, size: tuple[int, int] | None) -> Iterator[tuple[Float64Array, str]]:
    """Factors that writers make of largest values, and the words for it."""
    fmt = evidence.fmt
    assert fmt is not None
    of = "the largest value of the reference" + (" there" if amax.size > 1 else "")
    for largest in (fmt.max, *WRITERS_MAXIMA.get(fmt.name, ())):
        yield (amax / np.float32(largest)).astype(np.float64), f"{of} / {number(largest)}"
    if size == _NV and fmt.name == "E2M1":
        yield (
            _of_two_levels(evidence, amax, fmt),
            f"{of} / {number(fmt.max)}, rounded to E4M3 under a scale of the tensor",
        )
    if size == _MX or amax.size == 1:
        for rule in SCALE_RULES:
            words = f"the power of two that {rule.upper()} gives for {of}"
            yield e8m0_scales(amax, fmt, rule).astype(np.float64), words


def _of_two_levels(evidence: Evidence, amax: Float32Array, fmt: Format) -> Float64Array:
    """Blocks' factors as NVFP4 has them: E4M3 x the tensor's scale, the stored one or that of the largest block."""
    e4m3 = FORMATS["E4M3"]
    stored = float(np.ravel(evidence.factors)[0])
    second = np.float32(stored if evidence.quantised and evidence.quantised.scales else amax.max() / fmt.max / e4m3.max)
    with np.errstate(all="ignore"):
        return (fake_quantize(amax / np.float32(fmt.max) / second, e4m3) * second).astype(np.float64)


def _grid_of(evidence: Evidence, factors: Float64Array) -> Float64Array:
    """What is missing of these factors, where a scale of the tensor is stored."""
    stored = float(np.ravel(evidence.factors)[0])
    return factors / stored if evidence.quantised and evidence.quantised.scales and stored else factors


def _needed(size: tuple[int, int] | None, cells: Cells, scales: Float64Array) -> str:
    if cells.n == 1:
        return f"its codes need the factor {scales.flat[0]:.4g}"
    kept = scales[np.isfinite(scales) & (scales > 0)]
    span = f"{number(float(kept.min()))} to {number(float(kept.max()))}" if kept.size else "0"
    return f"its codes need a factor for each {_noun(size)}, {span}"


def _noun(size: tuple[int, int] | None) -> str:
    lines, columns = size or (0, 0)
    if not lines:
        return "column" if columns else "matrix"
    return f"block of {lines} x {columns}" if columns else "line"
