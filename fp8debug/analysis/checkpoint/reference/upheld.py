"""What magnitudes alone suggest, where a reference knows better."""

from __future__ import annotations

from collections.abc import Iterable

from fp8debug.analysis.checkpoint.checks.hit import Hit
from fp8debug.analysis.checkpoint.reference.compared import Comparison

_GUESSES = {"codes_as_values", "magnitude_too_large", "magnitude_too_small"}
"""Checks that compare with what weights usually are."""
_PROVES_NOTHING = ("identical", "recoded")
"""Verdicts of a reference that may have the same fault."""


def upheld(hits: Iterable[Hit], comparisons: Iterable[Comparison]) -> list[Hit]:
    """The hits but for guesses about tensors that are about as large as the reference has them."""
    as_large = {
        tensor.name
        for comparison in comparisons
        for tensor in comparison.tensors
        if tensor.gain is not None and 0.5 < tensor.gain < 2 and tensor.verdict not in _PROVES_NOTHING
    }
    return [hit for hit in hits if hit.check not in _GUESSES or hit.place.tensor not in as_large]
