"""What one look at a tensor tells: extremes, zeros, and what is not finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from fp8debug.hooks.measure.layout import row_blocks


class Health(NamedTuple):
    """Counts and extremes of one tensor. None in a field: not measured by the engine that made it."""

    n: int
    """Elements."""
    n_zero: int | None
    """Zeros of either sign."""
    n_neg_zero: int | None
    """Zeros with the sign bit set."""
    n_nan: int | None
    n_posinf: int | None
    n_neginf: int | None
    amin: float | None
    """Smallest non-zero magnitude of the finite elements; None also when there is no such element."""
    amax: float | None
    """Largest magnitude of the finite elements; 0.0 when there is none."""

    @property
    def n_nonfinite(self) -> int:
        """NaN and Inf elements, as far as they were counted."""
        return (self.n_nan or 0) + (self.n_posinf or 0) + (self.n_neginf or 0)

    @property
    def has_nonfinite(self) -> bool:
        """Whether any element is NaN or Inf."""
        return bool(self.n_nan or self.n_posinf or self.n_neginf)


EMPTY = Health(n=0, n_zero=0, n_neg_zero=0, n_nan=0, n_posinf=0, n_neginf=0, amin=None, amax=0.0)


BLOCK = 1 << 20
"""Elements of a temporary."""


def nonfinite_rows(
    t: torch.Tensor, read: Callable[[torch.Tensor], torch.Tensor] = lambda rows: rows
) -> tuple[int, int]:
    """Return how many rows hold a NaN or Inf, and the first such row (-1 when there is none).

    Args:
        t: tensor of any shape, seen as (rows, last dimension); a vector is one row.
        read: makes of some rows the floating values that are looked at.
    """
    if t.numel() == 0:
        return 0, -1
    with torch.no_grad():
        bad = torch.cat([_is_bad(read(rows)) for rows in row_blocks(t.detach(), BLOCK)]).nonzero().flatten().cpu()
        return bad.numel(), int(bad[0]) if bad.numel() else -1


def _is_bad(rows: torch.Tensor) -> torch.Tensor:
    values = rows.to(torch.float32) if rows.element_size() == 1 else rows
    return ~torch.isfinite(values).all(dim=1)
