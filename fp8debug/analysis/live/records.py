"""What is known of a run at one moment. Renderers turn it into a screen or into lines."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Waiting:
    """There is nothing to read yet, and this is why: one sentence for a person."""

    reason: str


@dataclass(frozen=True, slots=True)
class LiveStep:
    """One step as the training reported it: the mean over the ranks that are read."""

    step: int
    loss: float | None
    grad_norm: float | None
    lr: float | None
    sampled: bool
    skipped: bool
    duration_s: float | None
    ended_unix_s: float | None
    """When its last rank ended it, by that rank's clock."""


@dataclass(frozen=True, slots=True)
class LiveOperand:
    """One tensor of one layer at one step, at its worst over ranks, micro-batches and calls, under one recipe."""

    layer: str
    tensor: str
    recipe: str
    fmt: str
    level: str
    """hit: beyond what rounding alone leaves, at this step | watch: clearly worse than usual | fine"""
    underflow: float | None
    """Share of the non-zero values that become zero."""
    overflow: float | None
    """Share of the values that are clipped."""
    sqnr_db: float | None
    """The lower of SQNR of all values and of the smallest 99 %."""
    gain: float | None
    scale_gap_bits: float | None


@dataclass(frozen=True, slots=True)
class NonFinite:
    """A tensor with a NaN or an Inf in one of the last steps."""

    layer: str
    tensor: str
    first_step: int
    last_step: int
    n_nan: int
    n_inf: int


@dataclass(frozen=True, slots=True)
class LiveEvent:
    """Something that went wrong or is missing, as often as it was said alike."""

    kind: str
    message: str
    first_step: int | None
    last_step: int | None
    layer: str | None
    """None where it is about no layer or about several."""
    tensor: str | None
    count: int
    last_unix_s: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run at one moment."""

    path: str
    script: str | None
    created_at: str
    status: str
    """running | killed: it says running but no process writes it | closed | failed | interrupted | disabled"""
    status_reason: str | None
    dead_ranks: tuple[int, ...]
    n_segments: int
    n_ranks: int
    n_ranks_read: int
    now_unix_s: float
    late_after_s: float
    """An age of the last record that the writer's own pauses do not explain."""
    holds_back: bool
    """Whether a flight recorder keeps the last steps in memory, so that their age says nothing."""
    steps: tuple[LiveStep, ...] = ()
    """The last ones, oldest first."""
    sampled_step: int | None = None
    """The last finished step that has error figures."""
    worst: tuple[LiveOperand, ...] = ()
    """Of that step, worst first; each operand once, under the recorded recipe that hurts it most."""
    n_hits: int = 0
    """Operands of that step at level hit."""
    n_judged: int = 0
    """Operands of that step with enough values to say anything."""
    gaps: tuple[LiveOperand, ...] = ()
    """Of the last step, sampled or not: scales above those of current scaling, largest gap first."""
    nonfinite: tuple[NonFinite, ...] = ()
    """Of the last steps, first ones first."""
    n_nonfinite: int = 0
    """All of them."""
    events: tuple[LiveEvent, ...] = ()
    """Newest last."""
    problems: tuple[str, ...] = field(default=())
    """Files that could not be read, one sentence each."""

    @property
    def last_step(self) -> LiveStep | None:
        """The newest step on disk; None before the first."""
        return self.steps[-1] if self.steps else None

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will be written, unless the run is resumed."""
        return self.status not in ("running", "killed")

    @property
    def age_s(self) -> float | None:
        """Seconds since the end of the newest step on disk; None before the first."""
        last = self.last_step
        return None if last is None or last.ended_unix_s is None else max(0.0, self.now_unix_s - last.ended_unix_s)

    @property
    def is_late(self) -> bool:
        """Whether a run that should go on has been silent for longer than it should."""
        age_s = self.age_s
        return self.status == "running" and not self.holds_back and age_s is not None and age_s > self.late_after_s

    @property
    def step_s(self) -> float | None:
        """Median duration of the last 20 steps."""
        known = sorted(step.duration_s for step in self.steps[-20:] if step.duration_s is not None)
        return known[len(known) // 2] if known else None
