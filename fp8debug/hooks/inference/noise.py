"""Signal and noise of a tensor against a reference, added up."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(slots=True)
class Noise:
    """Sums over the elements that are finite both ways, in float64."""

    signal: float = 0.0
    """Sum of y^2 of the reference."""
    power: float = 0.0
    """Sum of (y - q)^2."""
    n_nonfinite: int = 0
    """Elements that are finite in the reference and not here."""

    def add(self, reference: Tensor, other: Tensor) -> None:
        """Add the elements of two tensors of one shape."""
        y, q = (t.detach().cpu().double() for t in (reference, other))  # some accelerators have no float64
        is_there, is_here = torch.isfinite(y), torch.isfinite(q)
        self.n_nonfinite += int((is_there & ~is_here).sum())
        both = is_there & is_here
        if not both.all():
            y, q = y[both], q[both]
        self.signal += float(y.square().sum())
        self.power += float((y - q).square().sum())

    @property
    def relative(self) -> float:
        """Noise by signal; infinite where elements are lost to NaN or Inf."""
        if self.n_nonfinite:
            return math.inf
        return self.power / self.signal if self.signal else 0.0

    @property
    def sqnr_db(self) -> float | None:
        """10 log10(signal / noise); None where there is no noise, or no signal."""
        return 10 * math.log10(self.signal / self.power) if self.power and self.signal else None
