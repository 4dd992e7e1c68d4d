"""The operands of emulated GEMMs: each with the scale that is in force, quantised when a GEMM reads it."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from fp8debug.blocks import rotate
from fp8debug.hooks.emulate.layer import LayerRecipes
from fp8debug.hooks.emulate.plan import EmulationPlan
from fp8debug.hooks.emulate.scales import ScaleKeeper, own_scale
from fp8debug.hooks.measure.quantize import on_host, quantize
from fp8debug.recipes import BlockRecipe, Recipe
from fp8debug.replay import Moment, ScaleInForce

_SEED = 0


class Emulator:
    """What all layers of an emulation share."""

    def __init__(self, plan: EmulationPlan) -> None:
        self.keeper = ScaleKeeper(plan.rolls)
        self._generators: dict[torch.device, torch.Generator] = {}

    def generator(self, device: torch.device) -> torch.Generator:
        """Source of stochastic rounding on the device, always seeded alike; torch's own is left alone."""
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(_SEED)
        return self._generators[device]


class EmulatedCall:
    """One call of one layer: when it is, and with which scales its operands are cast."""

    def __init__(self, emulator: Emulator, layer: str, recipes: LayerRecipes, moment: Moment) -> None:
        self._emulator = emulator
        self._layer = layer
        self._recipes = recipes
        self.moment = moment
        self._in_force: dict[str, list[ScaleInForce]] = {}
        self._scales: dict[str, dict[str, np.float32 | None]] = {}

    def scales_in_force(self, tensor: str) -> list[ScaleInForce]:
        """The delayed scales that x, w or dy of this call is cast with; empty under recipes without a memory.

        Empty also for a tensor that is not cast; more than one only where its GEMMs read it under several recipes. May
        be asked from the call on; asked for dy before its cast, it tells which scale that will have.
        """
        if tensor in self._in_force:
            return self._in_force[tensor]
        keeper, moment = self._emulator.keeper, self._moment_of(tensor)
        return [
            scale
            for recipe in self._recipes.recipes_of(tensor)
            for scale in keeper.expected(self._layer, tensor, recipe, moment)
        ]

    def backward(self) -> None:
        """A gradient has reached the layer."""
        self._emulator.keeper.backward()

    def operand(self, tensor: str, value: Tensor) -> Operand:
        """An operand to be read by GEMMs; x and w are cast again in the backward pass, with the scales they had."""
        if tensor == "dy" or tensor not in self._scales:
            self._cast(tensor, value)
        return Operand(self._emulator, self._recipes, tensor, value, self._scales[tensor])

    def _cast(self, tensor: str, value: Tensor) -> None:
        keeper, moment = self._emulator.keeper, self._moment_of(tensor)
        self._scales[tensor] = scales = {}
        remembered = []
        for recipe in self._recipes.recipes_of(tensor):
            in_force = keeper.in_force(self._layer, tensor, recipe, moment, value)
            if in_force is None:
                scales[recipe.text] = own_scale(recipe, tensor, value)
            else:
                scales[recipe.text] = in_force.scale
                remembered.append(in_force)
        if remembered:
            self._in_force[tensor] = remembered

    def _moment_of(self, tensor: str) -> Moment:
        return self.moment._replace(pass_="backward") if tensor == "dy" else self.moment


class Operand:
    """x, w or dy, in high precision, as the GEMMs of one pass read it."""

    def __init__(
        self,
        emulator: Emulator,
        recipes: LayerRecipes,
        tensor: str,
        value: Tensor,
        scales: dict[str, np.float32 | None],
    ) -> None:
        self._emulator = emulator
        self._recipes = recipes
        self._tensor = tensor
        self._scales = scales
        self._rows: dict[str, Tensor] = {}
        self.value = value

    def read(self, gemm: str, orientation: str, dtype: torch.dtype) -> Tensor:
        """float32, the contracted axis last; rounded to `dtype` alone where the GEMM does not read it quantised."""
        recipe = self._recipes.recipe(gemm, self._tensor)
        if recipe is None:
            exact = self.value.detach().to(dtype).float()
            line = exact if orientation == "row" else exact.T
        else:
            line = self._quantized(recipe, orientation)
        if self._recipes.is_left_to_rotate(gemm, self._tensor, orientation):
            line = on_host(partial(rotate, rounded=False), line)
        return line

    def _quantized(self, recipe: Recipe, orientation: str) -> Tensor:
        if isinstance(recipe, BlockRecipe):
            return self._quantize(recipe, orientation)
        row = self._rows.get(recipe.text)
        if row is None:
            row = self._rows[recipe.text] = self._quantize(recipe, "row")
        return row if orientation == "row" else row.T

    def _quantize(self, recipe: Recipe, orientation: str) -> Tensor:
        generator = None
        if isinstance(recipe, BlockRecipe) and recipe.rounds_stochastically(self._tensor):
            generator = self._emulator.generator(self.value.device)
        scale = self._scales[recipe.text]
        return quantize(self.value, recipe, self._tensor, orientation, scale, generator=generator)
