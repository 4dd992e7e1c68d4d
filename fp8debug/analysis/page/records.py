"""What a page shows of a run, as records. Numbers are as they are; colours, bytes and HTML are made of them elsewhere.

An operand is one tensor of one layer. A plane is one metric of one tensor over all layers and steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fp8debug.analysis.distribution import Distribution
from fp8debug.analysis.report import Report
from fp8debug.analysis.whatif import WhatIf

Floats = npt.NDArray[np.float32]
Steps = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Band:
    """A range of values that means one thing."""

    below: float | None
    """Its end, which is not in it; None: the last one."""
    severity: int
    """0: as in a healthy run … 4: as bad as it gets."""
    side: int
    """-1 | 0 | +1: on which side of good it lies, for metrics that have two."""
    word: str
    """What it means, in two or three words."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One number that can be looked at over layers and steps."""

    name: str
    title: str
    unit: str
    """`` | share | dB | bits | elements"""
    meaning: str
    """One sentence."""
    worst: str
    """Which of several values is shown: largest | smallest | clipping_first: the largest where it is above zero, else
    the smallest."""
    is_log2: bool
    """Whether it is read by its exponent: drawn and stored as log2."""
    bands: tuple[Band, ...]
    """In rising order, of values as they are. Where all have severity 0 they are a scale without good or bad."""
    bands_by_fmt: tuple[tuple[str, tuple[Band, ...]], ...] = ()
    """Those of planes of a format that has its own, by `Plane.fmt`."""


@dataclass(frozen=True, slots=True, eq=False)
class Plane:
    """One metric of one tensor over layers and columns of steps."""

    metric: str
    operand: str
    """x | w | dy …, or the GEMM: fprop | dgrad | wgrad"""
    recipe: str | None
    """None: the metric is of no recipe."""
    fmt: str | None
    """Element format; of a GEMM both, such as `E5M2 x E4M3`."""
    values: Floats
    """float32, (n_layers, n_columns); NaN: nothing known; +Inf: no error at all (SQNR)."""
    sql: str
    """One SELECT for `fp8debug sql` that gives these values: layer, step, value."""


@dataclass(frozen=True, slots=True)
class Moved:
    """An operand that left its own band around a spike."""

    layer: str
    tensor: str
    metric: str
    """One of the page; of sqnr_db the values are dB below a healthy SQNR."""
    step: int
    before: float | None
    """Median of the steps before."""
    value: float | None
    """None: it has no number, such as that of what is not finite."""
    sentence: str


@dataclass(frozen=True, slots=True)
class PageSpike:
    """A spike of the loss or the gradient norm, and the tensors that moved."""

    series: str
    """loss | grad_norm"""
    first_step: int
    last_step: int
    sentence: str
    moved: tuple[Moved, ...]
    """The first and largest movers, at most a handful."""


@dataclass(frozen=True, slots=True, eq=False)
class Training:
    """What the training reported of itself, one entry a step."""

    steps: Steps
    loss: npt.NDArray[np.float64] | None
    """NaN where not finite or not known."""
    grad_norm: npt.NDArray[np.float64] | None
    lr: npt.NDArray[np.float64] | None
    spikes: tuple[PageSpike, ...]
    sql: str


@dataclass(frozen=True, slots=True)
class FormatRange:
    """The magnitudes that an element format can hold, at scale 1."""

    name: str
    largest: float
    smallest_normal: float
    smallest_subnormal: float


@dataclass(frozen=True, slots=True, eq=False)
class PageRun:
    """One run on a page."""

    name: str
    path: str
    layers: tuple[str, ...]
    """In model order."""
    first_steps: Steps
    """First step of each column, rising."""
    last_steps: Steps
    """Last step of each column; the same where a column is one step."""
    planes: tuple[Plane, ...]
    training: Training | None
    distributions: tuple[Distribution, ...]
    notes: tuple[str, ...]
    """What was left out, and by which rule; a page says all of them."""
    span: int = 1
    """Columns hold the steps s with the same s // span; 1: a column is a step."""


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """What is shown somewhere on the page, as a query to paste."""

    title: str
    sql: str


@dataclass(frozen=True, slots=True, eq=False)
class ReportPage:
    """Everything that the page of one run shows."""

    report: Report
    run: PageRun
    metrics: tuple[Metric, ...]
    """Those that any plane is of, in the order in which they are offered."""
    formats: tuple[FormatRange, ...]
    whatif: WhatIf | None
    plan: str | None
    """Text of the fallback plan; None: nothing to change."""
    queries: tuple[Query, ...]
