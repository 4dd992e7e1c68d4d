"""A verification as records."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fp8debug.analysis.verification.judge import Judgement
from fp8debug.analysis.verification.tail import Tail

KINDS = ("bf16", "recipe", "plan", "seed")
"""The baseline, the recipe emulated, the recipe with the plan, and further baselines of other seeds."""


@dataclass(frozen=True, slots=True)
class TrainedRun:
    """One training that was run."""

    kind: str
    """One of KINDS."""
    path: Path
    seed: int
    exit_code: int = 0
    wall_s: float | None = None


@dataclass(frozen=True, slots=True)
class Exposed:
    """An operand that an error or a warning is about, under the recipe that it really computed with."""

    layer: str
    tensor: str | None
    rule: str


@dataclass(frozen=True, slots=True)
class VerifiedRun:
    """One training, and what it came to."""

    kind: str
    path: str
    seed: int
    exit_code: int
    wall_s: float | None
    n_steps: int
    loss: float | None
    """Mean over the last steps; None: not recorded, or not finite."""
    grad_norm: float | None
    """Median over the same steps; None: not recorded."""
    tail: Tail | None
    """Against the baseline; None: of the baseline itself, and of further seeds."""
    exposed: tuple[Exposed, ...]


@dataclass(frozen=True, slots=True)
class Verification:
    """Everything that `fp8debug verify` says."""

    recipe: str
    plan_file: str
    plan_layers: tuple[str, ...]
    """Layers that the plan changes."""
    layers_in_bf16: tuple[str, ...]
    flops_kept: float | None
    judgement: Judgement
    min_recovery: float
    runs: tuple[VerifiedRun, ...]
    """In the order that they ran in."""
    resolved: tuple[Exposed, ...]
    """Found under the recipe, and no longer with the plan."""
    remaining: tuple[Exposed, ...]
    new: tuple[Exposed, ...]
    """Found with the plan only."""
    notes: tuple[str, ...]
    """What one should know before believing it."""

    def of(self, kind: str) -> VerifiedRun:
        """The run of that kind."""
        return next(run for run in self.runs if run.kind == kind)
