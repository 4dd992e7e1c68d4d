"""How the magnitudes of one record are spread over octaves, before a recipe and after it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Distribution:
    """The finite elements of one operand at one sampled step, all its records of that step together.

    An octave e holds the magnitudes in [2**e, 2**(e+1)). Counts are exact, of what the histogram holds.
    """

    layer: str
    tensor: str
    step: int
    recipe: str | None
    """Recipe of `after`; None: nothing but `before` is known."""
    fmt: str | None
    scale: float | None
    """Factor before the cast, of the record with the largest amax."""
    current_scale: float | None
    """What current scaling would have."""
    n: int
    """Finite elements."""
    n_zero: int
    """Zeros before."""
    n_zero_after: int
    n_nonfinite: int
    n_overflow: int
    """Elements beyond the largest finite value of the format at this scale."""
    amin: float | None
    amax: float | None
    octaves: tuple[int, ...]
    """Exponents, rising without gaps."""
    before: tuple[int, ...]
    """Elements in each octave."""
    after: tuple[int, ...]
    """Elements in each octave once cast and scaled back; empty without a recipe."""
    approx: str | None
    """'bf16' when FP32 values were rounded before they were counted."""
    sql: str
    """One SELECT for `fp8debug sql` that gives octave, n_before and n_after."""
