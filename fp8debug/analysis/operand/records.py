"""What is known of one operand, as records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fp8debug.analysis.distribution import Distribution
from fp8debug.analysis.suspects import Verdict


@dataclass(frozen=True, slots=True)
class Facts:
    """What the operand is. Shape and dtypes are those of its last record."""

    class_name: str | None
    """Of the layer's module."""
    in_features: int | None
    out_features: int | None
    gemms: tuple[str, ...]
    """GEMMs of the layer that read it."""
    shape: tuple[int, ...]
    """Local to the rank."""
    dtype: str | None
    gemm_dtype: str | None
    """What the GEMM consumed."""
    placement: str | None
    approx: str | None
    """'bf16': FP32 values were rounded before they were counted."""
    n_records: int
    ranks: tuple[int, ...]
    first_step: int | None
    last_step: int | None
    n_steps: int
    n_sampled_steps: int
    counted_steps: tuple[int, ...]
    """Steps of which every value was counted."""
    n_nonfinite: int
    """NaN and infinite elements of all records."""
    first_nonfinite_step: int | None


@dataclass(frozen=True, slots=True)
class Told:
    """What a finding says of the operand."""

    rule: str
    severity: str
    confidence: str
    message: str
    recipe: str | None
    first_step: int | None
    last_step: int | None
    advice: str
    page: str


@dataclass(frozen=True, slots=True)
class Standing:
    """What the rules say of the operand."""

    level: str
    """candidate: should fall back to BF16 | watch: unusual | fine: judged, and nothing said | not_judged"""
    verdicts: tuple[Verdict, ...]
    """One a recipe that is not fine, worst first."""
    fine_under: tuple[str, ...]
    """Recipes under which it was judged and is neither a candidate nor on the watch list."""
    why_not_judged: str | None
    told: tuple[Told, ...]
    """One a finding that names it, worst first."""


@dataclass(frozen=True, slots=True)
class Fit:
    """What one recipe and format leave of the operand at one step; its records added up."""

    recipe: str
    fmt: str
    source: str
    """framework | simulated: recorded, and whose scale | whatif: worked out from the counted values | blocks:
    recorded, one scale a block"""
    alternate: bool
    """The format is recorded beside the recipe's own."""
    scale: float | None
    """Factor before the cast, of the record with the largest amax; None with one scale a block."""
    largest: float | None
    """Largest value that the format has at this scale, in the tensor's own unit; so are the next two."""
    smallest_normal: float | None
    smallest_subnormal: float | None
    above: float | None
    """Share of the finite elements beyond `largest`; None where values were not counted."""
    below: float | None
    """Share of the non-zero values below `smallest_normal`, where precision fades."""
    underflow: float | None
    overflow: float | None
    sqnr_db: float | None
    sqnr_low_db: float | None
    gain: float | None
    exact: bool
    healthy_sqnr_db: float
    floor_sqnr_db: float
    """What rounding inside the format's normal range can give at worst."""


@dataclass(frozen=True, slots=True)
class Course:
    """How one number of the operand went over the steps, the worst of each step."""

    metric: str
    recipe: str | None
    """None: of the tensor itself."""
    fmt: str | None
    steps: tuple[int, ...]
    values: tuple[float, ...]
    judged_from: int | None = None
    """First step that rules judge, where a simulated history starts up before it."""

    @property
    def worst(self) -> tuple[int, float]:
        """(step, value) of the first step that is as bad as any, of those that rules judge where there are such."""
        points = list(zip(self.steps, self.values, strict=True))
        judged = [point for point in points if self.judged_from is None or point[0] >= self.judged_from]
        badness = _BADNESS.get(self.metric, float)
        return max(judged or points, key=lambda point: (badness(point[1]), -point[0]))


_BADNESS: dict[str, Callable[[float], float]] = {
    "sqnr_db": lambda value: -value,
    "sqnr_low_db": lambda value: -value,
    "gain": lambda value: abs(value - 1),
    # Whatever clips is worse than the largest waste of range.
    "scale_gap_bits": lambda value: 1 + value if value > 0 else -value / (1 - value),
}


@dataclass(frozen=True, slots=True)
class Payload:
    """What a GEMM read in low precision, at one step; of several records the last."""

    step: int
    recipe: str | None
    fmt: str | None
    n: int
    code_amax: float | None
    amax: float | None
    scale: float | None
    """None with one scale a block: then `scale_min` and `scale_max` are known."""
    scale_inv: float | None
    scale_min: float | None
    scale_max: float | None
    saturated: float | None
    subnormal: float | None
    zero: float | None
    n_nan: int | None
    gain: float | None
    """Of what the GEMM read; None where there is no tensor in high precision to compare with."""
    sqnr_db: float | None
    own_gain: float | None
    """What our own cast of the tensor at that scale gives."""
    is_stale: bool | None
    differs: bool | None


@dataclass(frozen=True, slots=True)
class Channels:
    """How one measure is spread over the channels along one axis, over the whole run."""

    axis: str
    measure: str
    recipe: str | None
    fmt: str | None
    n_channels: int
    n_zero: int
    median: float | None
    worst_percentile: float | None
    worst_value: float | None
    worst_channel: int | None
    worst_step: int | None


@dataclass(frozen=True, slots=True)
class Operand:
    """One tensor of one layer."""

    layer: str
    tensor: str
    facts: Facts
    standing: Standing
    step: int | None
    """Step that `distribution`, `fits` and `payload` are of; None: it was sampled in none."""
    asked_step: int | None
    recipe: str | None
    """Recipe that is looked at: asked for, or the one under which it is worst."""
    distribution: Distribution | None
    """None: no value was counted."""
    fits: tuple[Fit, ...]
    courses: tuple[Course, ...]
    payload: Payload | None
    channels: tuple[Channels, ...]
