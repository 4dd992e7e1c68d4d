"""The scale of every operand at every pass, delayed scaling's memory included."""

from __future__ import annotations

import threading

import numpy as np
from torch import Tensor

from fp8debug.hooks.clock import Clock, FinishedStep
from fp8debug.hooks.measure.quantize import largest_magnitude
from fp8debug.recipes import DelayedScaling, Recipe, TensorRecipe
from fp8debug.replay import Moment, ScaleInForce, ScaleSimulator

_TRAINING = ("forward", "backward")


class ScaleKeeper:
    """Finds scales; one keeper for all layers of an emulation.

    Delayed scaling advances as in Transformer Engine: `x` after each micro-batch's forward, `dy` after its backward,
    `w` once an optimizer step, when it is cast. Recomputed and evaluated passes read a scale and leave no trace.
    """

    def __init__(self, rolls: str) -> None:
        self.clock = Clock(_ignore)
        self._rolls = rolls
        self._simulators: dict[str, ScaleSimulator] = {}
        self._weights_cast: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()

    def forward(self, layer_id: int, training: bool) -> Moment:
        """A layer is about to run."""
        with self._lock:
            return self.clock.forward(layer_id, training)

    def backward(self) -> None:
        """A gradient has reached a layer."""
        with self._lock:
            self.clock.backward()

    def in_force(self, layer: str, tensor: str, recipe: Recipe, moment: Moment, value: Tensor) -> ScaleInForce | None:
        """The delayed scale that `value` is cast with; its amax enters the history. None under other recipes."""
        if not isinstance(recipe, DelayedScaling):
            return None
        with self._lock:
            if tensor == "w":
                moment = self._weight_moment((layer, recipe.text), moment)
            # What enters no history needs no amax.
            amax = largest_magnitude(value) if moment.pass_ in _TRAINING else 0.0
            return self._simulator(recipe).observe(layer, tensor, moment, amax)[0]

    def expected(self, layer: str, tensor: str, recipe: Recipe, moment: Moment) -> list[ScaleInForce]:
        """The delayed scale that a cast at this moment would have; nothing changes. Empty under other recipes."""
        if not isinstance(recipe, DelayedScaling):
            return []
        with self._lock:
            return self._simulator(recipe).peek(layer, tensor, moment)[:1]

    def _simulator(self, recipe: Recipe) -> ScaleSimulator:
        """The histories under one recipe: an operand that two GEMMs read under two recipes has two."""
        if recipe.text not in self._simulators:
            self._simulators[recipe.text] = ScaleSimulator([recipe], self._rolls)
        return self._simulators[recipe.text]

    def _weight_moment(self, cast: tuple[str, str], moment: Moment) -> Moment:
        """A weight is cast by the first training forward of a step; later passes read what that one had."""
        if moment.pass_ == "eval":
            return moment
        if moment.pass_ == "forward" and self._weights_cast.get(cast) != moment.step:
            self._weights_cast[cast] = moment.step
            return Moment(moment.step, 0, 0, "forward")
        return moment._replace(pass_="recompute")


def own_scale(recipe: Recipe, tensor: str, value: Tensor) -> np.float32 | None:
    """The scale that a memoryless recipe gives `value`; None where it gives none for the whole tensor."""
    if isinstance(recipe, TensorRecipe) and recipe.is_plain:
        return recipe.scale(largest_magnitude(value), recipe.formats_for(tensor)[0][0])
    return None


def _ignore(finished: FinishedStep) -> None:
    pass
