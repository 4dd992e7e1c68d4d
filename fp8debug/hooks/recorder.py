"""From a tensor at one moment to rows: health always; errors, histogram and raw values when the step is sampled."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from fp8debug.formats import Format
from fp8debug.hooks.clock import Moment
from fp8debug.hooks.measure.engine import Counted, Engine, UnsupportedDtype
from fp8debug.hooks.measure.health import Health, nonfinite_rows
from fp8debug.hooks.simulation import ScaleInForce, ScaleSimulator
from fp8debug.hooks.tables import Batch
from fp8debug.metrics import ErrorSums
from fp8debug.recipes import CurrentScaling, Recipe
from fp8debug.schema import RECORD_KEY

_NOWHERE: AbstractContextManager[object] = nullcontext()
TENSOR_CELL = [column.name for column in RECORD_KEY].index("tensor")


@dataclass(frozen=True, slots=True)
class Observed:
    """One tensor as a hook sees it."""

    layer: str
    tensor: str
    value: torch.Tensor
    gemm_dtype: torch.dtype
    moment: Moment


class Recorder:
    """Measures observed tensors and keeps the rows until the session flushes them."""

    def __init__(self, engine: Engine, recipes: Sequence[Recipe], rolls: str, segment: int, rank: int) -> None:
        self._engine = engine
        self._current = [r for r in recipes if isinstance(r, CurrentScaling)]
        self._simulator = ScaleSimulator(recipes, rolls)
        self._segment = segment
        self._rank = rank
        self._seq = itertools.count()
        self._lock = threading.Lock()
        self._unsupported: set[tuple[str, str]] = set()
        self.batch = Batch()
        self.fired: set[str] = set()
        self.n_records = 0

    def record(self, seen: Observed, *, sampled: bool, raw: bool) -> None:
        """Take everything that is wanted of one tensor; nothing of it is kept afterwards."""
        with self._lock, torch.no_grad(), _outside_transforms():
            value = _unwrapped(seen.value).detach()
            self.fired.add(seen.layer)
            self.n_records += 1
            key = self._key(seen)
            try:
                health, counted = self._measure(value, seen.gemm_dtype, sampled)
            except UnsupportedDtype as error:
                self._note_unsupported(seen, key, str(error))
                return
            self._add_tensor_row(seen, key, value, health, counted)
            amax = _scaling_amax(health)
            in_force = self._simulator.observe(seen.layer, seen.tensor, seen.moment, amax)
            self._add_scale_rows(key, in_force)
            if counted is not None and health.n:
                self._add_errors(key, value, amax, counted, in_force)
                self.batch.histograms.append(
                    (self._segment, self._rank, key[-1], _counted_word(value)), counted.values, counted.counts
                )
            if raw:
                self._add_values(key, value)

    def event(
        self, kind: str, message: str, *, step: int | None, layer: str | None = None, tensor: str | None = None
    ) -> None:
        """Note something that went wrong or is missing."""
        row = (self._segment, step, self._rank, time.time(), kind, layer, tensor, message)
        self.batch.rows["events"].append(row)

    def take_batch(self) -> Batch:
        """Hand over the rows collected so far."""
        with self._lock:
            batch, self.batch = self.batch, Batch()
        return batch

    def _key(self, seen: Observed) -> tuple[Any, ...]:
        moment = seen.moment
        return (
            self._segment,
            moment.step,
            moment.microbatch,
            moment.call,
            moment.pass_,
            self._rank,
            seen.layer,
            seen.tensor,
            next(self._seq),
        )

    def _measure(self, value: torch.Tensor, gemm_dtype: torch.dtype, sampled: bool) -> tuple[Health, Counted | None]:
        if not sampled:
            return self._engine.health(value, gemm_dtype), None
        counted = self._engine.count(value, gemm_dtype)
        return counted.health, counted

    def _add_tensor_row(
        self, seen: Observed, key: tuple[Any, ...], value: torch.Tensor, health: Health, counted: Counted | None
    ) -> None:
        rows, first = _nonfinite_rows(value, seen.gemm_dtype, health)
        self.batch.rows["tensors"].append(
            (
                *key,
                list(value.shape),
                dtype_word(value.dtype),
                dtype_word(seen.gemm_dtype),
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
                rows,
                first,
                health.amin,
                health.amax,
                counted.approx if counted else None,
                counted.checksum if counted else None,
            )
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
        value: torch.Tensor,
        amax: float | None,
        counted: Counted,
        in_force: Sequence[ScaleInForce],
    ) -> None:
        tensor = key[TENSOR_CELL]
        wanted: list[tuple[str, Format, bool, str, np.float32]] = [
            (recipe.text, fmt, alternate, "record", recipe.scale(amax or 0.0, fmt))
            for recipe in self._current
            for fmt, alternate in recipe.formats_for(tensor)
        ]
        wanted += [(s.recipe, s.fmt, s.alternate, "rank", s.scale) for s in in_force if s.scale is not None]
        requests = [(scale, fmt) for _, fmt, _, _, scale in wanted]
        if counted.approx is None:
            sums = self._engine.error_sums(counted.values, counted.counts, requests)
        else:
            sums = self._engine.tensor_error_sums(value, requests, counted)
        rows = self.batch.rows["errors"]
        for (recipe, fmt, alternate, scope, scale), s in zip(wanted, sums, strict=True):
            rows.append((*key, recipe, fmt.name, alternate, "simulated", scope, scale, *_sum_cells(s), counted.approx))

    def _add_values(self, key: tuple[Any, ...], value: torch.Tensor) -> None:
        shape = (value.shape[:-1].numel(), value.shape[-1]) if value.dim() else (1, 1)
        # A copy even where nothing is to be converted: the tensor may change, or go, before it is written.
        host = value.reshape(shape).to("cpu", torch.float32, copy=True).numpy()
        rows = self.batch.rows["values"]
        for number, row in enumerate(host):
            rows.append((*key, number, row))
        rows.array_bytes += host.nbytes

    def _note_unsupported(self, seen: Observed, key: tuple[Any, ...], reason: str) -> None:
        value = seen.value
        unknown = (None,) * (len(self.batch.rows["tensors"].column_names) - len(key) - 7)
        head = (list(value.shape), dtype_word(value.dtype), dtype_word(seen.gemm_dtype), "local", "all", False)
        self.batch.rows["tensors"].append((*key, *head, f"unsupported dtype: {reason}", *unknown))
        if (seen.layer, seen.tensor) not in self._unsupported:
            self._unsupported.add((seen.layer, seen.tensor))
            self.event("unsupported", reason, step=seen.moment.step, layer=seen.layer, tensor=seen.tensor)


def _outside_transforms() -> AbstractContextManager[object]:
    """Leave grad, vmap and the like of torch.func, which would wrap whatever we compute."""
    if torch._C._functorch.peek_interpreter_stack() is None:
        return _NOWHERE
    return temporarily_clear_interpreter_stack()


def _unwrapped(value: torch.Tensor) -> torch.Tensor:
    """The tensor itself where torch.func wraps it; under vmap it has the batch dimension too."""
    while torch._C._functorch.is_functorch_wrapped_tensor(value):
        value = torch._C._functorch.get_unwrapped(value)
    return value


def _nonfinite_rows(value: torch.Tensor, gemm_dtype: torch.dtype, health: Health) -> tuple[int | None, int | None]:
    if not health.has_nonfinite:
        return (None if health.n_nan is None else 0), None
    # As the GEMM reads it: what is finite in FP32 may overflow in FP16.
    n_rows, first = nonfinite_rows(value.to(gemm_dtype) if value.dtype is torch.float32 else value)
    return n_rows, first if n_rows else None


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


def _counted_word(value: torch.Tensor) -> str:
    return "payload" if value.dtype.itemsize == 1 else "high"


def dtype_word(dtype: torch.dtype) -> str:
    """`bfloat16` for torch.bfloat16."""
    return str(dtype).removeprefix("torch.")
