"""Words for numbers and for what shares a factor."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from fp8debug.analysis.checkpoint.reference.hypotheses.cells import ratio
from fp8debug.analysis.checkpoint.reference.hypotheses.evidence import Evidence

OF_OTHER_WEIGHTS = "a scale of other weights, such as those of an earlier step, would do this"
"""What is said of a scale that is nobody's, as far as is known."""


def number(value: float) -> str:
    """Three significant digits, whole numbers and powers of two of some size as they are."""
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}"
    return f"{value:.3g}"


def power(value: float) -> str:
    """A power of two: 0.25 (2^-2)."""
    return f"{number(value)} (2^{round(math.log2(abs(value)))})"


def too_large(factor: float) -> str:
    """All values are so many times too large, or too small."""
    if factor < 0:
        return f"all values have the wrong sign and are {number(-factor)} times as large as they should be"
    return f"all values are {number(factor)} times as large as they should be"


def cell_noun(evidence: Evidence, n: int = 2) -> str:
    """What the cells are, for people: blocks, lines, columns, matrices; the tensor, where there is one."""
    scale = evidence.quantised.grid_scale if evidence.quantised else None
    if scale is not None and scale.layout in ("line", "column", "block"):
        return scale.layout if n == 1 else f"{scale.layout}s"
    if evidence.cells.n == 1:
        return "tensor"
    return "matrix" if n == 1 else "matrices"


def each_cell(evidence: Evidence) -> str:
    """`each block`, or `the tensor`."""
    noun = cell_noun(evidence, 1)
    return "the tensor" if noun == "tensor" else f"each {noun}"


def gains(evidence: Evidence) -> str:
    """Range of the gains of blocks as they are read, in words."""
    low, high = gain_range(evidence)
    noun = cell_noun(evidence, 1)
    if number(low) == number(high):
        return f"gain {number(low)}"
    return f"{noun} gains {number(low)} to {number(high)}"


def gain_range(evidence: Evidence) -> tuple[float, float]:
    """Lowest and highest gain of a cell."""
    cells = evidence.cells
    found = ratio(cells.dot(evidence.x, evidence.values), cells.dot(evidence.x, evidence.x))
    kept: npt.NDArray[np.float64] = found[np.isfinite(found)]
    return (float(kept.min()), float(kept.max())) if kept.size else (math.nan, math.nan)
