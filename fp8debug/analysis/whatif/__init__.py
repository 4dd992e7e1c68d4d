"""What other recipes would do to the tensors of a run, without another run.

Recipes with one scale a tensor follow exactly from the histograms, for any parameter. What depends on where a value
stands, block scaling and the results of GEMMs, is what was recorded under the recipes given to `fp8debug attach`.
"""

from __future__ import annotations

from fp8debug.analysis.whatif.answer import WhatIf, default_recipes, record_sums, whatif
from fp8debug.analysis.whatif.errors import GemmErrors, OperandErrors
from fp8debug.analysis.whatif.notes import Note
from fp8debug.analysis.whatif.sweep import Sweep, parse_sweep, swept

__all__ = [
    "GemmErrors",
    "Note",
    "OperandErrors",
    "Sweep",
    "WhatIf",
    "default_recipes",
    "parse_sweep",
    "record_sums",
    "swept",
    "whatif",
]
