"""The engine interface: how health, histograms and error sums are taken, whatever does the counting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
import torch

from fp8debug.hooks.measure.blocks import BlockEngine
from fp8debug.hooks.measure.channels import ChannelEngine
from fp8debug.hooks.measure.codes import UnsupportedDtype
from fp8debug.hooks.measure.health import Health

if TYPE_CHECKING:
    from fp8debug.formats import BoolArray, Float32Array, Format
    from fp8debug.metrics import ErrorSums

__all__ = ["Counted", "Engine", "UnsupportedDtype"]


@dataclass(frozen=True, slots=True)
class Counted:
    """The exact summary of one tensor: its distinct finite values, and how often each occurs."""

    health: Health
    values: npt.NDArray[np.float32]
    """Distinct finite values in code order (+0, positive ascending, -0, negative descending), (k,)."""
    counts: npt.NDArray[np.int64]
    """Occurrences of each, (k,)."""
    checksum: int
    """Fletcher-64 of the raw bytes, unsigned 64-bit."""
    approx: str | None
    """'bf16' when `values` are rounded further than what the GEMM reads, else None."""


class Engine(BlockEngine, ChannelEngine, Protocol):
    """One way to measure tensors. Safe to call from several threads at once."""

    @property
    def name(self) -> str:
        """'numba' or 'torch'."""

    def warm_up(self) -> None:
        """Load or compile everything, so that no later call pays for it."""

    def health(self, t: torch.Tensor, gemm_dtype: torch.dtype) -> Health:
        """Take the health of `t` as the GEMM reads it; raises UnsupportedDtype."""

    def count(self, t: torch.Tensor, gemm_dtype: torch.dtype) -> Counted:
        """Count the distinct values of `t` as the GEMM reads it; raises UnsupportedDtype."""

    def error_sums(
        self,
        values: npt.NDArray[np.float32],
        counts: npt.NDArray[np.int64],
        requests: Sequence[tuple[np.float32, Format]],
    ) -> list[ErrorSums]:
        """Return the error sums of a histogram for each (scale, format); see fp8debug.metrics.error_sums."""

    def tensor_error_sums(
        self, t: torch.Tensor, requests: Sequence[tuple[np.float32, Format]], counted: Counted | None = None
    ) -> list[ErrorSums]:
        """Return the error sums of an FP32 or FP64 tensor, from its FP32 values, for each (scale, format).

        The `low_` sums are those of the BF16-rounded histogram; pass `counted` if it is at hand.
        """

    def rounded_sums(
        self,
        counted: Counted,
        quantize: Callable[[Float32Array], tuple[Float32Array, BoolArray]],
        t: torch.Tensor | None = None,
    ) -> ErrorSums:
        """Return the error sums of any way to quantise, over a histogram or, where `t` is given, its FP32 elements.

        `quantize` takes FP32 values and returns what becomes of them, and which round beyond the largest finite value.
        The `low_` sums are those of the histogram.
        """
