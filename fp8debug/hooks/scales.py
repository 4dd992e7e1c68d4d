"""Scales in force for a record under each recipe with one scale a tensor: simulated, or the framework's own.

A framework's scale takes the place of a simulated one of the same recipe and format, so that no record has two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fp8debug.errors import UsageError
from fp8debug.formats import Format
from fp8debug.recipes import DelayedScaling, Recipe, TensorRecipe, parse_recipe
from fp8debug.replay import Moment, ScaleInForce, ScaleSimulator


class InForce(NamedTuple):
    """One scale of one record."""

    recipe: Recipe
    fmt: Format
    alternate: bool
    scale: np.float32 | None
    """The factor before the cast; None when it is unknown."""


class Sourced(NamedTuple):
    """A scale, and whose it is."""

    in_force: InForce
    source: str
    """framework | simulated"""
    scope: str
    """record | rank: whose amax the scale comes from"""


class ScaleBook:
    """Simulates stateful recipes over the records in their order, and joins what frameworks give."""

    def __init__(self, recipes: Sequence[Recipe], rolls: str) -> None:
        self._stateless = [r for r in recipes if isinstance(r, TensorRecipe)]
        self._simulator = ScaleSimulator(recipes, rolls)
        self._by_text: dict[str, Recipe] = {r.text: r for r in recipes if isinstance(r, DelayedScaling)}

    def observe(
        self, layer: str, tensor: str, moment: Moment, amax: float | None, framework: Sequence[ScaleInForce]
    ) -> list[tuple[ScaleInForce, str]]:
        """Let the histories see `amax`; return the scales that a record has a row of, each with its source."""
        simulated = self._simulator.observe(layer, tensor, moment, amax)
        if not framework:
            return [(scale, "simulated") for scale in simulated]
        framework = [self._in_our_words(scale) for scale in framework]
        given = {_name(scale) for scale in framework}
        kept = [(scale, "simulated") for scale in simulated if _name(scale) not in given]
        return [(scale, "framework") for scale in framework] + kept

    def break_histories(self, is_broken: Callable[[str, str], bool]) -> None:
        """As in `ScaleSimulator`."""
        self._simulator.break_histories(is_broken)

    def in_force(self, tensor: str, amax: float, observed: Sequence[tuple[ScaleInForce, str]]) -> list[Sourced]:
        """Return every scale of a record: those of `observe`, and those that follow from its amax alone."""
        given = {_name(scale) for scale, _ in observed}
        stateless = [
            Sourced(InForce(recipe, fmt, alternate, recipe.scale(amax, fmt)), "simulated", "record")
            for recipe in self._stateless
            for fmt, alternate in recipe.formats_for(tensor)
            if (recipe.text, fmt.name) not in given
        ]
        return stateless + [
            Sourced(InForce(self._recipe(s.recipe), s.fmt, s.alternate, s.scale), source, "rank")
            for s, source in observed
        ]

    def knows(self, text: str) -> bool:
        """Whether a framework's recipe has one scale a tensor and is one of ours, so that it can be simulated."""
        try:
            return isinstance(self._recipe(text), (DelayedScaling, TensorRecipe))
        except UsageError:
            return False

    def _in_our_words(self, scale: ScaleInForce) -> ScaleInForce:
        # Errors are told under the recipe's own text: under another, nothing would join them with their scale.
        return scale._replace(recipe=self._recipe(scale.recipe).text) if self.knows(scale.recipe) else scale

    def _recipe(self, text: str) -> Recipe:
        recipe = self._by_text.get(text)
        if recipe is None:  # a framework's, that nobody asked to simulate
            recipe = self._by_text[text] = parse_recipe(text)
        return recipe


def _name(scale: ScaleInForce) -> tuple[str, str]:
    return scale.recipe, scale.fmt.name
