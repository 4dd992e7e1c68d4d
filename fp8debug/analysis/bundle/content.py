"""What a bundle holds, in figures and words."""

from __future__ import annotations

from dataclasses import dataclass

from fp8debug.analysis.bundle.moment import Moment


@dataclass(frozen=True, slots=True)
class Bundle:
    """What was collected."""

    moment: Moment
    """Its names and texts are those of the run itself."""
    verdict: str
    """The same sentence as it stands in the bundle."""
    n_findings: int
    lost: tuple[str, ...]
    """Rules whose findings cannot be told from the bundle alone: what they read is left out or cut."""
    n_histograms: int
    """Tensors with a histogram."""
    cut: tuple[str, ...]
    """What was cut to stay below the limit."""
