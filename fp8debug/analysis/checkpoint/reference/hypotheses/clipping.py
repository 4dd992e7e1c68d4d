"""Values beyond what the scale can hold, saturated; the others right."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fp8debug.analysis.checkpoint.reference.compared import Hypothesis
from fp8debug.analysis.checkpoint.reference.hypotheses.evidence import Evidence
from fp8debug.analysis.checkpoint.reference.hypotheses.trial import LEAST_EXPLAINED, Trial, explained_by
from fp8debug.analysis.checkpoint.reference.hypotheses.wording import cell_noun, number

_FEWEST = 2
_MOST = 0.95
"""Of all values; where more are cut off, the others do not tell whether they are right."""


def clipped(evidence: Evidence) -> Iterator[Trial]:
    """The reference with its large values cut off at the largest code, against ours."""
    if evidence.fmt is None:
        return
    magnitude = np.abs(evidence.codes)
    largest = float(magnitude.max(initial=0))
    with np.errstate(all="ignore"):
        limit = np.abs(evidence.factors) * np.float32(largest)
        beyond = np.abs(evidence.x) > limit * np.float32(1 + evidence.fmt.max_gain_error)
        cut = np.clip(evidence.x, -limit, limit)
    n = int(np.count_nonzero(beyond))
    n_saturated = int(np.count_nonzero(beyond & (magnitude == largest)))
    if n < _FEWEST or n_saturated < 0.99 * n or n > _MOST * evidence.n:
        return
    left = float(np.sum((cut - evidence.values) ** 2, dtype=np.float64))
    explained = explained_by(evidence, left)
    if explained < LEAST_EXPLAINED or left > 2 * evidence.rounding_error:
        return
    reaches = float(np.abs(evidence.x).max())
    n_cells = int(np.count_nonzero(evidence.cells.sum(beyond.astype(np.float32))))
    of_format = "" if largest == evidence.fmt.max else f", which is not the format's {number(evidence.fmt.max)}"
    where = f" in {n_cells:,} of {evidence.cells.n:,} {cell_noun(evidence)}" if evidence.cells.n > 1 else ""
    words = (
        f"{n:,} of {evidence.n:,} values ({100 * n / evidence.n:.2g} %){where} lie beyond what the scale can hold and "
        f"are cut off at the code {number(largest)}{of_format} (the largest value is {number(reaches)}); the others "
        "are right: the scale was made for smaller values"
    )
    yield Trial(Hypothesis("clipped", words, explained, None), 0, 1.0)
