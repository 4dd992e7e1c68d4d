"""From measurements to rows: scales in force, error sums, and the cells of every table, in order of observation.

A hook runs between two GEMMs, with caches full of other things; what need not happen there waits here and is done for
many measurements at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from fp8debug.formats import Format
from fp8debug.hooks.details import DetailMaker, is_detailed
from fp8debug.hooks.measure.engine import Counted, Engine
from fp8debug.hooks.measure.health import Health
from fp8debug.hooks.observed import LOCAL, Placement
from fp8debug.hooks.scales import InForce, ScaleBook, Sourced
from fp8debug.hooks.tables import Batch
from fp8debug.metrics import ErrorSums
from fp8debug.recipes import Recipe, TensorRecipe
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


class RowMaker:
    """Turns measurements into rows of a batch. Simulated histories live here: order matters."""

    def __init__(
        self,
        engine: Engine,
        recipes: Sequence[Recipe],
        rolls: str,
        segment: int,
        rank: int,
        detail: Sequence[str] = (),
    ) -> None:
        self._engine = engine
        self._scales = ScaleBook(recipes, rolls)
        self._details = DetailMaker(engine, recipes, detail)
        self._segment = segment
        self._rank = rank
        self._waiting: deque[Measurement] = deque()
        self._waiting_bytes = 0
        self.batch = Batch()

    @property
    def n_bytes(self) -> int:
        """Rough memory held, in bytes."""
        return self.batch.n_bytes + self._waiting_bytes

    def add_later(self, taken: Measurement) -> None:
        """Keep a measurement until `catch_up`."""
        self._waiting.append(taken)
        if taken.counted is not None:
            self._waiting_bytes += taken.counted.values.nbytes + taken.counted.counts.nbytes

    def add_now(self, taken: Measurement, value: torch.Tensor) -> list[InForce]:
        """Make rows at once, those included that need the `value`; catches up first.

        Returns:
            The scales in force, one for each recipe with one scale a tensor and format; empty for an empty tensor, and
            when the record was not counted.
        """
        self.catch_up()
        return self._add(taken, value)

    def catch_up(self) -> None:
        """Make the rows of all that waits."""
        self._waiting_bytes = 0
        while self._waiting:
            self._add(self._waiting.popleft(), None)

    def take_batch(self) -> Batch:
        """Hand over all rows."""
        self.catch_up()
        batch, self.batch = self.batch, Batch()
        return batch

    def key(self, seq: int, layer: str, tensor: str, moment: Moment) -> tuple[Any, ...]:
        """The record key's cells."""
        step, microbatch, call, pass_ = moment
        return (self._segment, step, microbatch, call, pass_, self._rank, layer, tensor, seq)

    def _add(self, taken: Measurement, value: torch.Tensor | None) -> list[InForce]:
        key = self.key(taken.seq, taken.layer, taken.tensor, taken.moment)
        health, counted = taken.health, taken.counted
        self.batch.rows["tensors"].append(_tensor_row(key, taken))
        amax = scaling_amax(health)
        observed = self._scales.observe(taken.layer, taken.tensor, taken.moment, amax, taken.framework)
        self._add_scale_rows(key, observed)
        if counted is None or not health.n:
            return []
        sourced = self._scales.in_force(taken.tensor, amax or 0.0, observed)
        self._add_errors(key, value if counted.approx is not None else None, counted, sourced)
        self.batch.histograms.append(
            (self._segment, self._rank, taken.seq, _counted_word(taken.dtype)), counted.values, counted.counts
        )
        in_force = [s.in_force for s in sourced]
        if value is not None and is_detailed(taken.moment):
            self._details.add(self.batch, key, taken.tensor, value, taken.gemm_dtype, amax or 0.0, in_force)
        return in_force

    def _add_scale_rows(self, key: tuple[Any, ...], observed: Sequence[tuple[ScaleInForce, str]]) -> None:
        rows = self.batch.rows["scales"]
        for s, source in observed:
            rows.append(
                (
                    *key,
                    s.recipe,
                    s.fmt.name,
                    s.alternate,
                    source,
                    "rank",
                    s.scale,
                    s.scale_inv,
                    s.amax_used,
                    s.history_len,
                    s.history_zeros,
                    s.n_rolls,
                    None,
                    s.set_at_step,
                    s.status,
                )
            )

    def _add_errors(
        self, key: tuple[Any, ...], value: torch.Tensor | None, counted: Counted, sourced: Sequence[Sourced]
    ) -> None:
        known = [s for s in sourced if s.in_force.scale is not None]
        rows = self.batch.rows["errors"]
        for ((recipe, fmt, alternate, scale), source, scope), sums in zip(
            known, self._error_sums(value, counted, [s.in_force for s in known]), strict=True
        ):
            head = (recipe.text, fmt.name, alternate, source, scope, scale)
            rows.append((*key, *head, *_sum_cells(sums), counted.approx))

    def _error_sums(self, value: torch.Tensor | None, counted: Counted, in_force: Sequence[InForce]) -> list[ErrorSums]:
        """Sums for each scale, which is known; of the elements of `value` where there is one, else of the histogram."""
        health = counted.health
        amax, amin = scaling_amax(health) or 0.0, health.amin or 0.0
        found: dict[int, ErrorSums] = {}
        requests: dict[int, tuple[np.float32, Format]] = {}
        for i, (recipe, fmt, _, scale) in enumerate(in_force):
            if isinstance(recipe, TensorRecipe) and not recipe.is_plain:
                quantize = partial(recipe.round, amax=amax, amin=amin, fmt=fmt)
                found[i] = self._engine.rounded_sums(counted, quantize, value)
            elif scale is not None:
                requests[i] = (scale, fmt)
        wanted = list(requests.values())
        if value is None:
            sums = self._engine.error_sums(counted.values, counted.counts, wanted)
        else:
            sums = self._engine.tensor_error_sums(value, wanted, counted)
        found |= zip(requests, sums, strict=True)
        return [found[i] for i in range(len(in_force))]


def _tensor_row(key: tuple[Any, ...], taken: Measurement) -> tuple[Any, ...]:
    health, counted = taken.health, taken.counted
    return (
        *key,
        *tensor_head(taken.shape, taken.dtype, taken.gemm_dtype, key[_RANK], taken.placement, taken.precision_asked),
        counted is not None,
        "ok" if health.n else "empty",
        health.n,
        health.n_zero,
        health.n_neg_zero,
        health.n_nan,
        health.n_posinf,
        health.n_neginf,
        *taken.nonfinite_rows,
        health.amin,
        health.amax,
        counted.approx if counted else None,
        counted.checksum if counted else None,
    )


def tensor_head(
    shape: Sequence[int],
    dtype: torch.dtype,
    gemm_dtype: torch.dtype,
    rank: int,
    placement: Placement,
    precision_asked: str | None,
) -> tuple[Any, ...]:
    """Cells of a row of `tensors` that say what the tensor is, between the record key and `sampled`."""
    text, shard, replica_of = placement
    owner = rank if replica_of is None else replica_of
    return (list(shape), dtype_word(dtype), dtype_word(gemm_dtype), text, shard, owner, "all", precision_asked)


def scaling_amax(health: Health) -> float | None:
    """The amax as the scaling kernels see it: an Inf is seen, a NaN is dropped; None when it was not measured."""
    if health.amax is None:
        return None
    return float("inf") if (health.n_posinf or 0) + (health.n_neginf or 0) else health.amax


def _sum_cells(s: ErrorSums) -> tuple[Any, ...]:
    return (
        s.n,
        s.n_nonzero,
        s.n_underflow,
        s.n_overflow,
        s.sum_x2,
        s.sum_q2,
        s.sum_xq,
        s.sum_err2,
        s.n_low,
        s.low_sum_x2,
        s.low_sum_err2,
    )


def _counted_word(dtype: torch.dtype) -> str:
    return "payload" if dtype.itemsize == 1 else "high"


def dtype_word(dtype: torch.dtype) -> str:
    """`bfloat16` for torch.bfloat16."""
    return str(dtype).removeprefix("torch.")
