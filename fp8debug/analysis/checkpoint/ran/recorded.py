"""The weights that a run has recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fp8debug.analysis.run import Run
from fp8debug.formats import Float32Array


@dataclass(frozen=True, slots=True)
class RecordedWeight:
    """A weight in high precision at the last step that has it."""

    layer: str
    step: int
    shape: tuple[int, ...]
    amax: float
    rms: float | None
    """None: that step was not sampled."""


@dataclass(frozen=True, slots=True)
class WeightSample:
    """A weight at fixed positions, and what a GEMM read there."""

    step: int
    shape: tuple[int, ...]
    fmt: str
    positions: npt.NDArray[np.int64]
    """In the flattened weight."""
    values: Float32Array | None
    """In high precision; None: there was only the payload."""
    codes: Float32Array
    """Values of the codes, before scale_inv."""
    scale_inv: float | None


def recorded_weights(run: Run) -> Mapping[str, RecordedWeight]:
    """By layer, in the order of the model, the last record of each weight that is whole on a rank."""
    rows = run.sql(
        """
        select layer, step, shape, amax, rms
        from recorded_weights
        where amax is not null
        qualify row_number() over (partition by layer order by rms is null, segment desc, step desc) = 1
        order by min(seq) over (partition by layer)
        """
    ).fetchall()
    return {layer: RecordedWeight(layer, step, tuple(shape), amax, rms) for layer, step, shape, amax, rms in rows}


def sampled_layers(run: Run) -> tuple[str, ...]:
    """Layers whose weights are followed at fixed positions."""
    return tuple(layer for (layer,) in run.sql("select distinct layer from weight_samples order by layer").fetchall())


def weight_samples(run: Run, layer: str) -> tuple[WeightSample, ...]:
    """All samples of a layer's weight, the last one first."""
    rows = run.sql(
        """
        select step, shape, fmt, stride, "values", codes, scale_inv
        from weight_samples
        where layer = $layer
        order by segment desc, step desc
        """,
        layer=layer,
    ).fetchall()
    return tuple(
        WeightSample(
            step,
            tuple(shape),
            fmt,
            np.arange(len(codes), dtype=np.int64) * stride,
            None if values is None else np.array(values, np.float32),
            np.array(codes, np.float32),
            scale_inv,
        )
        for step, shape, fmt, stride, values, codes, scale_inv in rows
    )
