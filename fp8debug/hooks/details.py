"""Rows of `blocks` and `channels`: what depends on where a value stands, taken while the tensor is at hand.

Taken of the first use of a layer in the first micro-batch of a sampled step, in training, so that the cost does not
grow with micro-batches; of large tensors on a sample that each row names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fp8debug.formats import Format
from fp8debug.gemms import gemm_of
from fp8debug.hooks.dtypes import FP8_DTYPES
from fp8debug.hooks.measure import channels
from fp8debug.hooks.measure.blocks import BlockMeter
from fp8debug.hooks.measure.channels import AXES, ChannelMeter, Spread
from fp8debug.hooks.measure.engine import Engine
from fp8debug.hooks.measure.strips import Sample, as_matrix, sample_of
from fp8debug.hooks.scales import InForce
from fp8debug.hooks.tables import Batch
from fp8debug.recipes import BlockRecipe, Recipe, TensorRecipe
from fp8debug.replay import Moment

OPERANDS = ("x", "w", "dy")
ORIENTATIONS = ("row", "column")


def is_detailed(moment: Moment) -> bool:
    """Whether details of this pass are taken when its step is sampled; of evaluation only where the run serves."""
    return moment.microbatch == 0 and moment.call == 0 and moment.pass_ in ("forward", "backward", "eval")


class DetailMaker:
    """Measures the details of one tensor after the other and adds their rows to a batch."""

    def __init__(self, engine: Engine, recipes: Sequence[Recipe], detail: Sequence[str]) -> None:
        self._engine = engine
        self._recipes = [r for r in recipes if isinstance(r, BlockRecipe)] if "blocks" in detail else []
        self._wants_channels = "channels" in detail

    def add(
        self,
        batch: Batch,
        key: tuple[Any, ...],
        tensor: str,
        value: torch.Tensor,
        gemm_dtype: torch.dtype,
        tensor_amax: float,
        in_force: Sequence[InForce],
    ) -> None:
        """Measure `value` (not empty); payload in FP8 has no details.

        Args:
            key: cells of the record key; the last one, `seq`, and the rank seed stochastic rounding.
            tensor_amax: largest magnitude as scaling kernels see it: infinite where the tensor has an infinity.
            in_force: scales that channels are measured under.
        """
        if value.dtype in FP8_DTYPES:
            return
        with torch.no_grad():
            matrix = as_matrix(value)
            for orientation in ORIENTATIONS:
                sample = sample_of(matrix, orientation)
                meters = self._block_meters(key, tensor, orientation, tensor_amax)
                scales = [s for s in in_force if s.scale is not None and _is_plain(s.recipe)]
                channel_meter = self._channel_meter(sample, scales) if orientation == "row" else None
                if not meters and channel_meter is None:
                    continue
                for strip in sample.strips(matrix, gemm_dtype):
                    for meter, *_ in meters:
                        meter.add(strip)
                    if channel_meter is not None:
                        channel_meter.add(strip)
                self._add_blocks(batch, key, tensor, sample, meters)
                if channel_meter is not None:
                    _add_channels(batch, key, tensor, sample, scales, channel_meter)

    def _block_meters(
        self, key: tuple[Any, ...], tensor: str, orientation: str, tensor_amax: float
    ) -> list[tuple[BlockMeter, BlockRecipe, Format, bool]]:
        if tensor not in OPERANDS:
            return []
        rng = np.random.default_rng((key[5], key[-1])) if self._rounds_stochastically(tensor) else None
        return [
            (BlockMeter(self._engine, recipe, tensor, orientation, fmt, tensor_amax, rng), recipe, fmt, alternate)
            for recipe in self._recipes
            for fmt, alternate in recipe.formats_for(tensor)
        ]

    def _rounds_stochastically(self, tensor: str) -> bool:
        return any(recipe.rounds_stochastically(tensor) for recipe in self._recipes)

    def _channel_meter(self, sample: Sample, scales: Sequence[InForce]) -> ChannelMeter | None:
        if not self._wants_channels:
            return None
        requests = [(s.scale, s.fmt) for s in scales if s.scale is not None]
        return ChannelMeter(self._engine, sample.n_sampled_lines, sample.length, requests)

    def _add_blocks(
        self,
        batch: Batch,
        key: tuple[Any, ...],
        tensor: str,
        sample: Sample,
        meters: Sequence[tuple[BlockMeter, BlockRecipe, Format, bool]],
    ) -> None:
        rows = batch.rows["blocks"]
        for meter, recipe, fmt, alternate in meters:
            gemm = gemm_of(tensor, sample.orientation)
            head = (recipe.text, fmt.name, alternate, sample.orientation, gemm, sample.text, sample.n_total)
            # Nothing is rounded before the GEMM would round it, hence no `approx`.
            rows.append((*key, *head, *meter.summary().cells(), None))


def _is_plain(recipe: Recipe) -> bool:
    """Whether the scale alone says how a value is rounded."""
    return not isinstance(recipe, TensorRecipe) or recipe.is_plain


def _add_channels(
    batch: Batch,
    key: tuple[Any, ...],
    tensor: str,
    sample: Sample,
    scales: Sequence[InForce],
    meter: ChannelMeter,
) -> None:
    nobody = (None, None, None, None)
    for axis, (sums, numbers) in zip(AXES[tensor], meter.axes(), strict=True):
        _add_spread(batch, key, (axis, "amax", *nobody, sample.text), channels.amax_spread(sums, numbers))
        for i, (recipe, fmt, alternate, scale) in enumerate(scales):
            whose = (recipe.text, fmt.name, alternate, scale, sample.text)
            _add_spread(batch, key, (axis, "sqnr_db", *whose), channels.sqnr_spread(sums, numbers, i))
            _add_spread(batch, key, (axis, "underflow", *whose), channels.underflow_spread(sums, numbers, i))


def _add_spread(batch: Batch, key: tuple[Any, ...], head: tuple[Any, ...], spread: Spread) -> None:
    rows = batch.rows["channels"]
    cells = (spread.n_channels, spread.n_zero, spread.n_exact, spread.bins, spread.counts)
    rows.append((*key, *head, *cells, spread.worst_channel, spread.worst_value))
    rows.array_bytes += spread.bins.nbytes + spread.counts.nbytes
