"""What was measured of one tensor at one moment, and its row of the table `tensors`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from fp8debug.hooks.dtypes import WORDS, dtype_word
from fp8debug.hooks.masks import BY_ROWS
from fp8debug.hooks.measure.device import Arriving
from fp8debug.hooks.measure.engine import Counted
from fp8debug.hooks.measure.health import Health
from fp8debug.hooks.observed import LOCAL, Placement
from fp8debug.hooks.payloads import PayloadFacts
from fp8debug.replay import Moment, ScaleInForce

_RANK = 5
"""Place of the rank in the record key."""


class Measurement(NamedTuple):
    """What was measured of one tensor at one moment; nothing of the tensor itself."""

    seq: int
    layer: str
    tensor: str
    moment: Moment
    shape: tuple[int, ...]
    dtype: torch.dtype
    gemm_dtype: torch.dtype
    health: Health
    counted: Counted | None
    nonfinite_rows: tuple[int | None, int | None]
    """How many rows have a NaN or Inf, and the first of them."""
    framework: Sequence[ScaleInForce] = ()
    """Scales that the framework itself had in force."""
    precision_asked: str | None = None
    placement: Placement = LOCAL
    detailed: bool = True
    """Whether details are wanted of this record, where it has any."""
    payload: PayloadFacts | None = None
    """What the framework's GEMM read: of a payload's own record, and of the one of the tensor in high precision."""
    is_payload: bool = False
    """Whether these are the codes themselves."""
    row_class: str = "all"
    rows: str | None = None
    """Which rows the class is, such as 100-127, where they are a few ranges."""
    classes: Sequence[RowClass] = ()
    """The same tensor's rows by class, to be measured under this record's scales."""
    arriving: Arriving | None = None
    """On its way from a device: health, histogram and non-finite rows, which are not known before."""

    def arrived(self) -> Measurement:
        """The measurement with what was on its way, waited for."""
        if self.arriving is None:
            return self
        health, counted, rows = self.arriving.reading()
        return self._replace(health=health, counted=counted, nonfinite_rows=rows, arriving=None)


class RowClass(NamedTuple):
    """Some rows of a tensor, as a record of their own."""

    taken: Measurement
    value: torch.Tensor | None
    """Those rows, where they are needed at once."""


class Missed(NamedTuple):
    """A pass whose tensor nobody could see."""

    seq: int
    layer: str
    tensor: str
    moment: Moment
    framework: Sequence[ScaleInForce]
    """Scales that the framework itself had in force."""
    amax: Callable[[], float] | None
    """The framework's own; None when it is not known."""


def tensor_row(key: tuple[Any, ...], taken: Measurement) -> tuple[Any, ...]:
    """The row of a measurement; `key` has the cells of the record key."""
    health, counted = taken.health, taken.counted
    dtype, gemm_dtype = dtype_word(taken.dtype), dtype_word(taken.gemm_dtype)
    if taken.is_payload and taken.payload is not None:
        dtype = gemm_dtype = WORDS[taken.payload.fmt.name]
    return (
        *key,
        *tensor_head(
            taken.shape, dtype, gemm_dtype, key[_RANK], taken.placement, taken.precision_asked, taken.row_class
        ),
        counted is not None and not is_replica(taken.placement, key[_RANK]),
        _status(taken),
        health.n,
        health.n_zero,
        health.n_neg_zero,
        health.n_nan,
        health.n_posinf,
        health.n_neginf,
        *taken.nonfinite_rows,
        health.amin,
        health.amax if health.n else None,
        counted.approx if counted else None,
        counted.checksum if counted else None,
        taken.rows,
    )


def _status(taken: Measurement) -> str:
    if taken.is_payload and taken.payload is not None and taken.payload.is_alone:
        return "payload_only"
    if taken.health.n:
        return "ok"
    if taken.placement.shard is not None:
        return "empty_shard"
    return "no_tokens" if taken.tensor in BY_ROWS else "empty"


def is_replica(placement: Placement, rank: int) -> bool:
    """Whether another rank records the same data: then this one takes health and checksum alone."""
    return placement.replica_of not in (None, rank)


def tensor_head(
    shape: Sequence[int],
    dtype: str,
    gemm_dtype: str,
    rank: int,
    placement: Placement,
    precision_asked: str | None,
    row_class: str = "all",
) -> tuple[Any, ...]:
    """Cells of a row of `tensors` that say what the tensor is, between the record key and `sampled`."""
    text, shard, replica_of = placement
    owner = rank if replica_of is None else replica_of
    return (list(shape), dtype, gemm_dtype, text, shard, owner, row_class, precision_asked)


def scaling_amax(health: Health) -> float | None:
    """The amax as the scaling kernels see it: an Inf is seen, a NaN is dropped; None when it was not measured."""
    if health.amax is None:
        return None
    return float("inf") if (health.n_posinf or 0) + (health.n_neginf or 0) else health.amax
