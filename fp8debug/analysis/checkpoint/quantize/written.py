"""What has been written: records alone."""

from __future__ import annotations

from dataclasses import dataclass

from fp8debug.analysis.checkpoint.quantize.choosing import Kept


@dataclass(frozen=True, slots=True)
class QuantisedTensor:
    """One weight that was quantised."""

    name: str
    """As the source names it."""
    tensors: tuple[str, ...]
    """What it was written as: codes, scales."""
    shape: tuple[int, ...]
    sqnr_db: float | None
    """10 log10(sum x^2 / sum (x - q)^2); None: nothing was lost, or all values are zero."""
    n_nonfinite: int
    """Values that are NaN or infinite, in the source or by the cast."""


@dataclass(frozen=True, slots=True)
class Written:
    """A checkpoint that was quantised."""

    path: str
    source: str
    dialect: str
    recipe: str
    """Its canonical text."""
    fmt: str
    """Format of the codes."""
    quantised: tuple[QuantisedTensor, ...]
    kept: tuple[Kept, ...]
    files: tuple[str, ...]
    """All that were written, relative to `path` or, where that is a file, to its folder."""
    n_bytes: int
    """Of all tensors."""
    n_source_bytes: int

    @property
    def worst(self) -> QuantisedTensor | None:
        """That of the lowest SQNR."""
        known = [one for one in self.quantised if one.sqnr_db is not None]
        return min(known, key=lambda one: one.sqnr_db or 0.0, default=None)
