"""The compiled engine: one pass over the memory of a CPU tensor."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from fp8debug.hooks.measure import codes, layout
from fp8debug.hooks.measure.counting import extremes, histogram, placed, sums
from fp8debug.hooks.measure.counting.scratch import Scratch
from fp8debug.hooks.measure.counting.torch_ops import TorchEngine
from fp8debug.hooks.measure.engine import Counted
from fp8debug.hooks.measure.health import EMPTY, Health

if TYPE_CHECKING:
    from fp8debug.formats import Float32Array, Format
    from fp8debug.hooks.measure.blocks import BlockSums
    from fp8debug.hooks.measure.channels import AxisSums
    from fp8debug.hooks.measure.strips import Strip
    from fp8debug.metrics import ErrorSums
    from fp8debug.recipes import BlockRecipe


class NumbaEngine(TorchEngine):
    """Measures CPU tensors with compiled kernels, everything exactly; tensors elsewhere as TorchEngine does.

    Importing this module compiles the kernels, or loads them from numba's cache.
    """

    name = "numba"

    def __init__(self) -> None:
        self._local = threading.local()

    def warm_up(self) -> None:
        """Take the usual paths once."""
        super().warm_up()
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            self.count(torch.ones(9, dtype=dtype), dtype)

    def health(self, t: torch.Tensor, gemm_dtype: torch.dtype) -> Health:
        """Take the health of `t` as the GEMM reads it; raises UnsupportedDtype."""
        way = codes.route(t.dtype, gemm_dtype)
        if t.device.type != "cpu":
            return super().health(t, gemm_dtype)
        if t.numel() == 0:
            return EMPTY
        if way.source.itemsize == 1:
            return self.count(t, gemm_dtype).health
        return extremes.health(t.detach(), way)

    def count(self, t: torch.Tensor, gemm_dtype: torch.dtype) -> Counted:
        """Count the distinct values of `t` as the GEMM reads it; raises UnsupportedDtype."""
        way = codes.route(t.dtype, gemm_dtype)
        if t.device.type != "cpu":
            return super().count(t, gemm_dtype)
        scratch = self._borrow()
        counted = histogram.count(t.detach(), way, scratch)
        self._local.scratch = scratch  # not after an exception: it may have left counts in the tables
        return counted

    def error_sums(
        self,
        values: npt.NDArray[np.float32],
        counts: npt.NDArray[np.int64],
        requests: Sequence[tuple[np.float32, Format]],
    ) -> list[ErrorSums]:
        """Return the error sums of a histogram for each (scale, format)."""
        return sums.of_histogram(values, counts, requests)

    def block_sums(
        self,
        strip: Strip,
        recipe: BlockRecipe,
        tensor: str,
        fmt: Format,
        tensor_amax: float,
        rng: np.random.Generator | None,
    ) -> BlockSums:
        """Return the sums of one strip; see Engine."""
        if recipe.rounds_stochastically(tensor) or not placed.fits(strip, recipe.tile(tensor)):
            return super().block_sums(strip, recipe, tensor, fmt, tensor_amax, rng)
        return placed.block_sums(strip, recipe, tensor, fmt, tensor_amax)

    def add_channels(
        self, x: Float32Array, requests: Sequence[tuple[np.float32, Format]], lines: AxisSums, columns: AxisSums
    ) -> None:
        """Add one strip to the sums of its lines and columns; see Engine."""
        placed.add_channels(x, requests, lines, columns)

    def _element_sums(self, t: torch.Tensor, requests: Sequence[tuple[np.float32, Format]]) -> list[ErrorSums]:
        blocks = layout.flat_blocks(layout.storage_order(t), aligned=False)
        return sums.of_values((layout.as_array(block.to(torch.float32)) for block in blocks), requests)

    def _borrow(self) -> Scratch:
        """Take this thread's tables, which are gone until they are given back."""
        scratch: Scratch | None = getattr(self._local, "scratch", None)
        self._local.scratch = None
        return scratch or Scratch()
