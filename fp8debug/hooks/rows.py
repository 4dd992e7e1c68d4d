"""From measurements to rows: scales in force, error sums, and the cells of every table, in order of observation.

A hook runs between two GEMMs, with caches full of other things; what need not happen there waits here and is done for
many measurements at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from fp8debug.formats import Format
from fp8debug.hooks.measure.engine import Counted, Engine
from fp8debug.hooks.measure.health import Health
from fp8debug.hooks.tables import Batch
from fp8debug.metrics import ErrorSums
from fp8debug.recipes import CurrentScaling, Recipe
from fp8debug.replay import Moment, ScaleInForce, ScaleSimulator


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


class RowMaker:
    """Turns measurements into rows of a batch. Simulated histories live here: order matters."""

    def __init__(self, engine: Engine, recipes: Sequence[Recipe], rolls: str, segment: int, rank: int) -> None:
        self._engine = engine
        self._current = [r for r in recipes if isinstance(r, CurrentScaling)]
        self._simulator = ScaleSimulator(recipes, rolls)
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

    def add_now(self, taken: Measurement, value: torch.Tensor) -> None:
        """Make rows at once, with error sums straight from the FP32 or FP64 `value`; catches up first."""
        self.catch_up()
        self._add(taken, value)

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

    def _add(self, taken: Measurement, value: torch.Tensor | None) -> None:
        key = self.key(taken.seq, taken.layer, taken.tensor, taken.moment)
        health, counted = taken.health, taken.counted
        self.batch.rows["tensors"].append(_tensor_row(key, taken))
        amax = _scaling_amax(health)
        in_force = self._simulator.observe(taken.layer, taken.tensor, taken.moment, amax)
        self._add_scale_rows(key, in_force)
        if counted is not None and health.n:
            self._add_errors(key, taken.tensor, value, amax, counted, in_force)
            self.batch.histograms.append(
                (self._segment, self._rank, taken.seq, _counted_word(taken.dtype)), counted.values, counted.counts
            )

    def _add_scale_rows(self, key: tuple[Any, ...], in_force: Sequence[ScaleInForce]) -> None:
        rows = self.batch.rows["scales"]
        for s in in_force:
            rows.append(
                (
                    *key,
                    s.recipe,
                    s.fmt.name,
                    s.alternate,
                    "simulated",
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
        self,
        key: tuple[Any, ...],
        tensor: str,
        value: torch.Tensor | None,
        amax: float | None,
        counted: Counted,
        in_force: Sequence[ScaleInForce],
    ) -> None:
        wanted: list[tuple[str, Format, bool, str, np.float32]] = [
            (recipe.text, fmt, alternate, "record", recipe.scale(amax or 0.0, fmt))
            for recipe in self._current
            for fmt, alternate in recipe.formats_for(tensor)
        ]
        wanted += [(s.recipe, s.fmt, s.alternate, "rank", s.scale) for s in in_force if s.scale is not None]
        requests = [(scale, fmt) for _, fmt, _, _, scale in wanted]
        if value is None:
            sums = self._engine.error_sums(counted.values, counted.counts, requests)
        else:
            sums = self._engine.tensor_error_sums(value, requests, counted)
        rows = self.batch.rows["errors"]
        for (recipe, fmt, alternate, scope, scale), s in zip(wanted, sums, strict=True):
            rows.append((*key, recipe, fmt.name, alternate, "simulated", scope, scale, *_sum_cells(s), counted.approx))


def _tensor_row(key: tuple[Any, ...], taken: Measurement) -> tuple[Any, ...]:
    health, counted = taken.health, taken.counted
    return (
        *key,
        taken.shape,
        dtype_word(taken.dtype),
        dtype_word(taken.gemm_dtype),
        "local",
        "all",
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


def _scaling_amax(health: Health) -> float | None:
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
