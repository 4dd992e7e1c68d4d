"""The operands of emulated GEMMs: each with the scale that is in force, quantised when a GEMM reads it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fp8debug.hooks.emulate.plan import EmulationPlan
from fp8debug.hooks.emulate.scales import ScaleKeeper
from fp8debug.hooks.measure.quantize import quantize
from fp8debug.recipes import BlockRecipe
from fp8debug.replay import Moment, ScaleInForce

_SEED = 0


class Emulator:
    """What all layers of an emulation share."""

    def __init__(self, plan: EmulationPlan) -> None:
        self.plan = plan
        self.keeper = ScaleKeeper(plan.recipe, plan.rolls)
        self._generators: dict[torch.device, torch.Generator] = {}

    def generator(self, device: torch.device) -> torch.Generator:
        """Source of stochastic rounding on the device, always seeded alike; torch's own is left alone."""
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(_SEED)
        return self._generators[device]


class EmulatedCall:
    """One call of one layer: when it is, and with which scales its operands are cast."""

    def __init__(self, emulator: Emulator, layer: str, moment: Moment) -> None:
        self._emulator = emulator
        self._layer = layer
        self.moment = moment
        self._in_force: dict[str, ScaleInForce] = {}
        self._scales: dict[str, np.float32 | None] = {}

    def scales_in_force(self, tensor: str) -> list[ScaleInForce]:
        """The delayed scale that x, w or dy of this call is cast with; empty under recipes without a memory.

        Empty also for a tensor that is not cast. May be asked from the call on; asked for dy before its cast, it tells
        which scale that will have.
        """
        if not self._emulator.plan.casts(tensor):
            return []
        if tensor in self._in_force:
            return [self._in_force[tensor]]
        return self._emulator.keeper.expected(self._layer, tensor, self._moment_of(tensor))

    def backward(self) -> None:
        """A gradient has reached the layer."""
        self._emulator.keeper.backward()

    def operand(self, tensor: str, value: Tensor) -> Operand:
        """An operand to be read by GEMMs; x and w are cast again in the backward pass, with the scale they had."""
        if self._emulator.plan.casts(tensor) and (tensor == "dy" or tensor not in self._scales):
            keeper = self._emulator.keeper
            in_force = keeper.in_force(self._layer, tensor, self._moment_of(tensor), value)
            if in_force is not None:
                self._in_force[tensor] = in_force
            self._scales[tensor] = keeper.own_scale(tensor, value) if in_force is None else in_force.scale
        return Operand(self._emulator, tensor, value, self._scales.get(tensor))

    def _moment_of(self, tensor: str) -> Moment:
        return self.moment._replace(pass_="backward") if tensor == "dy" else self.moment


class Operand:
    """x, w or dy, in high precision, as the GEMMs of one pass read it."""

    def __init__(self, emulator: Emulator, tensor: str, value: Tensor, scale: np.float32 | None) -> None:
        self._emulator = emulator
        self._tensor = tensor
        self._scale = scale
        self._row: Tensor | None = None
        self.value = value

    def read(self, gemm: str, orientation: str, dtype: torch.dtype) -> Tensor:
        """float32, the contracted axis last; rounded to `dtype` alone where the GEMM does not read it quantised."""
        plan = self._emulator.plan
        if not plan.quantizes(self._tensor, gemm):
            exact = self.value.detach().to(dtype).float()
            return exact if orientation == "row" else exact.T
        if isinstance(plan.recipe, BlockRecipe):
            return self._quantize(orientation)
        if self._row is None:
            self._row = self._quantize("row")
        return self._row if orientation == "row" else self._row.T

    def _quantize(self, orientation: str) -> Tensor:
        recipe, generator = self._emulator.plan.recipe, None
        if isinstance(recipe, BlockRecipe) and recipe.rounds_stochastically(self._tensor):
            generator = self._emulator.generator(self.value.device)
        return quantize(self.value, recipe, self._tensor, orientation, self._scale, generator=generator)
