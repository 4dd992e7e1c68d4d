"""Loss curves held against each other: are the runs comparable, how far are they apart, when did it begin, and where.

A source is a run directory, or a CSV or JSON file with columns step and loss that any logger wrote.
"""

from __future__ import annotations

from fp8debug.analysis.compare.comparison import Comparison, Pair, compare
from fp8debug.analysis.compare.curve import Curve, make_curve
from fp8debug.analysis.compare.gap import Gap, GapPoint, gap_of
from fp8debug.analysis.compare.gate import Gate, GateResult, parse_gate

__all__ = [
    "Comparison",
    "Curve",
    "Gap",
    "GapPoint",
    "Gate",
    "GateResult",
    "Pair",
    "compare",
    "gap_of",
    "make_curve",
    "parse_gate",
]
