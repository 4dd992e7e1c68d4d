"""Health and histogram of one tensor or of the codes of a payload, by whoever can take them where the tensor is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

from fp8debug.hooks.measure.device import Arriving, DeviceCounter, is_on_accelerator
from fp8debug.hooks.measure.engine import Counted, Engine
from fp8debug.hooks.measure.health import EMPTY, Health, nonfinite_rows
from fp8debug.hooks.observed import Payload
from fp8debug.hooks.payloads import as_float8, count_codes, decoded, health_of

NonfiniteRows = tuple[int | None, int | None]
"""How many rows hold something non-finite, and the first of them."""


class Taken(NamedTuple):
    """What was taken of a tensor; of one on an accelerator it is on its way, and `health` is empty until then."""

    health: Health
    counted: Counted | None
    arriving: Arriving | None
    nonfinite_rows: NonfiniteRows


class Taking:
    """Takes measurements on the host, or on the accelerator that holds the tensor."""

    def __init__(self, engine: Engine, note: Callable[[str], None]) -> None:
        """`note`: told, once, when an accelerator counts slowly."""
        self._engine = engine
        self._device = DeviceCounter(note=note)

    def of_tensor(self, value: torch.Tensor, gemm_dtype: torch.dtype, *, sampled: bool) -> Taken:
        """Health and, if sampled, histogram.

        Raises:
            UnsupportedDtype: it cannot be measured.
        """
        health, counted, arriving = self._take(value, gemm_dtype, sampled)
        return Taken(health, counted, arriving, rows_of(value, gemm_dtype, health))

    def of_codes(self, payload: Payload, *, sampled: bool) -> Taken:
        """As `of_tensor`, of the codes that a GEMM read."""
        health, counted, arriving = self._take_codes(payload, sampled)
        rows: NonfiniteRows = (0, None)
        if health.has_nonfinite:
            rows = nonfinite_rows(payload.codes.detach(), partial(decoded, fmt=payload.fmt))
        return Taken(health, counted, arriving, rows)

    def of_rows(self, rows: torch.Tensor, gemm_dtype: torch.dtype) -> tuple[Counted, NonfiniteRows]:
        """Histogram of some rows of a tensor, whose values are at hand."""
        counted = self._engine.count(rows, gemm_dtype)
        return counted, rows_of(rows, gemm_dtype, counted.health)

    def _take(
        self, value: torch.Tensor, gemm_dtype: torch.dtype, sampled: bool
    ) -> tuple[Health, Counted | None, Arriving | None]:
        if is_on_accelerator(value) and value.numel():
            measure = self._device.count if sampled else self._device.health
            return EMPTY, None, measure(value, gemm_dtype)
        if not sampled:
            return self._engine.health(value, gemm_dtype), None, None
        counted = self._engine.count(value, gemm_dtype)
        return counted.health, counted, None

    def _take_codes(self, payload: Payload, sampled: bool) -> tuple[Health, Counted | None, Arriving | None]:
        float8 = as_float8(payload)
        if float8 is not None and is_on_accelerator(float8):
            return self._take(float8, float8.dtype, sampled)
        if not sampled:
            return health_of(self._engine, payload), None, None
        counted = count_codes(self._engine, payload)
        return counted.health, counted, None


def rows_of(value: torch.Tensor, gemm_dtype: torch.dtype, health: Health) -> NonfiniteRows:
    """Rows of a tensor with something non-finite in them; (None, None) where nobody looked."""
    if not health.has_nonfinite:
        return (None if health.n_nan is None else 0), None
    # As the GEMM reads it: what is finite in FP32 may overflow in FP16.
    read = partial(torch.Tensor.to, dtype=gemm_dtype) if value.dtype is torch.float32 else torch.Tensor.detach
    n_rows, first = nonfinite_rows(value, read)
    return n_rows, first if n_rows else None
