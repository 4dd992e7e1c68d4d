"""A part that was never written: lines or columns of zeros, where all others are right."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fp8debug.analysis.checkpoint.reference.compared import Hypothesis
from fp8debug.analysis.checkpoint.reference.hypotheses.evidence import Evidence
from fp8debug.analysis.checkpoint.reference.hypotheses.trial import LEAST_EXPLAINED, Trial, explained_by
from fp8debug.formats import BoolArray

_AS_ROUNDED = 1.25
_MOST = 0.9
"""Where more are zero, the others do not tell that they are right."""


def zeroed_part(evidence: Evidence) -> Iterator[Trial]:
    """Lines that are zero here and not in the reference, else such columns."""
    errors = np.square(evidence.x - evidence.values, dtype=np.float64)
    for axis, noun in ((1, "lines"), (0, "columns")):
        is_there: BoolArray = np.any(evidence.x != 0, axis=axis)
        is_zero: BoolArray = is_there & ~np.any(evidence.values != 0, axis=axis)
        n = int(np.count_nonzero(is_zero))
        if n == 0 or n > _MOST * np.count_nonzero(is_there):
            continue
        left = float(errors.sum(axis=axis)[~is_zero].sum())
        explained = explained_by(evidence, left)
        if explained < LEAST_EXPLAINED or left > _AS_ROUNDED * evidence.rounding_error:
            continue
        numbers = evidence.lines if axis == 1 else np.arange(is_zero.size)
        words = f"{n:,} of {is_zero.size:,} {noun} are all zero, {_which(is_zero, numbers)}, and the others are right"
        yield Trial(Hypothesis("zeroed", words, explained, None), 0, 1.0)
        return


def _which(is_zero: BoolArray, numbers: np.typing.NDArray[np.intp]) -> str:
    at = np.flatnonzero(is_zero)
    first, last = int(numbers[at[0]]), int(numbers[at[-1]])
    if len(at) == 1:
        return f"number {first:,}"
    return f"{first:,} to {last:,}" if at[-1] - at[0] + 1 == len(at) else f"{first:,} the first and {last:,} the last"
