"""Parts of a tensor that have factors of their own: q, k and v, or gate and up, joined under one scale."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fp8debug.analysis.checkpoint.reference.hypotheses.cells import Cells, Rows, ratio
from fp8debug.analysis.checkpoint.reference.hypotheses.evidence import Evidence
from fp8debug.analysis.checkpoint.reference.hypotheses.trial import Reading, Trial, try_reading
from fp8debug.analysis.checkpoint.reference.hypotheses.wording import number
from fp8debug.metrics import Float64Array

_MOST_PARTS = 8
_FEWEST_LINES = 4
_APART = 0.02
"""Relative; lines of hundreds of elements tell factors to some tenths of a percent."""
_TOLD = 4
_AS_ROUNDED = 1.5
"""Error, over rounding's, that one factor leaves where there are no parts."""


def joined_parts(evidence: Evidence) -> Iterator[Trial]:
    """Runs of lines with one factor each, fitted; of more than one line each, and few of them."""
    quantised = evidence.quantised
    if quantised is None or len(quantised.shape) != 2 or evidence.cells.n != 1:
        return
    if evidence.fitted_error < _AS_ROUNDED * evidence.rounding_error:
        return
    too_large = _of_lines(evidence)
    told = np.flatnonzero(np.isfinite(too_large) & (too_large > 0))
    if told.size < 2 * _FEWEST_LINES:
        return
    starts = _starts(too_large[told])
    if not 2 <= len(starts) <= _MOST_PARTS:
        return
    part_of = np.searchsorted(told[starts], np.arange(len(evidence.lines)), "right") - 1
    parts = Cells(np.maximum(part_of, 0), evidence.length, evidence.length)
    fitted = ratio(parts.dot(evidence.x, evidence.codes), parts.dot(evidence.codes, evidence.codes))
    words = _words(evidence, told[starts], fitted[:, 0])
    reading = Reading("joined_parts", words, parts.spread(np.nan_to_num(fitted)), freedom=len(starts))
    found = try_reading(evidence, reading)
    if found is not None:
        yield found


def _of_lines(evidence: Evidence) -> Float64Array:
    """How many times too large values of each line are, by the median: columns that stand out round as they like."""
    both = (evidence.x != 0) & (evidence.values != 0)
    quotients = np.full(evidence.x.shape, np.nan)
    np.divide(evidence.values, evidence.x, out=quotients, where=both)
    medians = np.full(len(quotients), np.nan)
    filled = both.any(axis=1)
    medians[filled] = np.nanmedian(quotients[filled], axis=1)
    return medians


def _starts(factors: Float64Array) -> Rows:
    """Where another factor begins, that the next lines have as well."""
    starts, begin = [0], 0
    logs = np.log(factors)
    for line in range(1, len(logs)):
        before = np.median(logs[begin : max(line, begin + 1)])
        after = logs[line : line + _FEWEST_LINES]
        if len(after) == _FEWEST_LINES and np.all(np.abs(after - before) > _APART) and np.ptp(after) < _APART:
            starts.append(line)
            begin = line
            if len(starts) > _MOST_PARTS:
                break
    return np.array(starts, np.intp)


def _words(evidence: Evidence, starts: Rows, fitted: Float64Array) -> str:
    stored = float(np.broadcast_to(evidence.factors, evidence.x.shape)[0, 0])
    ends = np.append(starts[1:], len(evidence.lines)) - 1
    parts = [
        f"{number(stored / factor)} in lines {evidence.lines[first]:,} to {evidence.lines[last]:,}"
        for first, last, factor in zip(starts, ends, fitted, strict=True)
    ]
    shown = ", ".join(parts[:_TOLD]) + (", ..." if len(parts) > _TOLD else "")
    looked_at = "" if evidence.is_whole else " (of those that were looked at)"
    return (
        "parts of it were made with scales of their own and are read with one, as if they had been joined and not "
        f"rounded anew: the gain is {shown}{looked_at}"
    )
