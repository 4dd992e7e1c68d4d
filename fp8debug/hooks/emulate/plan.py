"""What is emulated: the recipe, the layers that are kept out, which operands of which GEMMs, and what departs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from fp8debug.config import EMULATED_PARTS, GEMM_NAMES, BadValue, parse_some
from fp8debug.errors import UsageError, nearest
from fp8debug.gemms import GEMMS, READS
from fp8debug.hooks.emulate.layer import LayerRecipes, Reads, departures_text
from fp8debug.hooks.selection import compile_patterns, matches_any, unmatched
from fp8debug.plans import BF16, Plan
from fp8debug.recipes import Recipe, parse_recipe


@dataclass(frozen=True)
class EmulationPlan:
    """Settings of an emulation, checked."""

    recipe: Recipe
    keep: tuple[re.Pattern[str], ...] = ()
    """Layers that any of them matches stay in high precision."""
    only: tuple[str, ...] = ()
    """Operands (x, w, dy) and GEMMs (fprop, dgrad, wgrad); empty: all."""
    rolls: str = "microbatch"
    """When delayed histories advance: microbatch | step."""
    departures: Mapping[str, Reads] = field(default_factory=dict)
    """What the layers of a fallback plan read, by their exact names."""
    is_exact: bool = False
    """Whether layers without departures stay in high precision: the recipe of a fallback plan may be `bf16`."""

    @classmethod
    def from_words(
        cls,
        recipe: str | Recipe | None,
        keep_bf16: Sequence[str] = (),
        only: str | Iterable[str] = (),
        *,
        plan: Plan | None = None,
        rolls: str = "microbatch",
    ) -> EmulationPlan:
        """Check what a person wrote; `recipe` takes the place of the plan's own, and may be None where there is one.

        Raises:
            UsageError: an unknown recipe, parameter, operand or GEMM, operands that no named GEMM reads, or a regex
                that does not compile.
        """
        words: object = only if isinstance(only, str) else list(only)
        try:
            parts = parse_some(*EMULATED_PARTS)(words) if words else ()
        except BadValue as error:
            raise UsageError(f"emulate only: got {only!r}; expected {error}") from error
        if recipe is None:
            if plan is None:
                raise UsageError("emulate: got neither a recipe nor a plan; expected a recipe such as 'current'")
            recipe = plan.recipe
        parsed = parse_recipe(recipe) if isinstance(recipe, str) else recipe
        whole = cls(parsed, compile_patterns(keep_bf16, "--keep-bf16"), parts, rolls)
        if not whole._base:
            reads = "; ".join(f"{gemm} reads {' and '.join(name for name, _ in GEMMS[gemm])}" for gemm in GEMMS)
            raise UsageError(f"emulate only: got {only!r}, which leaves nothing to emulate; {reads}")
        return whole if plan is None else whole._departing(plan)

    def _departing(self, plan: Plan) -> EmulationPlan:
        plan = Plan(self.recipe.text, plan.entries)
        base = self._base
        is_exact = self.recipe.text == BF16
        departures = {
            layer: {
                (gemm, tensor): parse_recipe(change)
                for gemm, tensor in base
                if (change := plan.change_of(layer, tensor, gemm)) != BF16
            }
            for layer in dict.fromkeys(entry.layer for entry in plan.entries)
        }
        return EmulationPlan(self.recipe, self.keep, self.only, self.rolls, departures, is_exact)

    @property
    def text(self) -> str:
        """The recipe, and what of it where that is not everything: `current, only dy,wgrad`."""
        return f"{self.recipe.text}, only {','.join(self.only)}" if self.only else self.recipe.text

    @property
    def recipes(self) -> tuple[Recipe, ...]:
        """Everything that any layer computes with, the plan's recipe first."""
        departing = [recipe for reads in self.departures.values() for recipe in reads.values()]
        return tuple({recipe.text: recipe for recipe in [self.recipe, *departing]}.values())

    def of_layer(self, name: str) -> LayerRecipes:
        """What the GEMMs of the layer called `name` read."""
        reads = self.departures.get(name)
        if reads is None:
            return self._whole
        how = departures_text(self._whole.reads, reads)
        return LayerRecipes(reads, f"{self.text}, {how}" if how else self.text)

    def keeps(self, name: str) -> bool:
        """Whether the layer called `name` stays in high precision."""
        return matches_any(self.keep, name) or not (self.departures.get(name, self._whole.reads))

    def unmatched(self, names: Iterable[str]) -> list[str]:
        """Patterns of `keep` that match none of `names`."""
        return unmatched(self.keep, list(names))

    def unmatched_departures(self, names: Iterable[str]) -> list[str]:
        """Layers of the fallback plan that are none of `names`, each with the names nearest to it."""
        known = list(names)
        missing = [layer for layer in self.departures if layer not in set(known)]
        return [f"'{layer}'{_near(layer, known)}" for layer in missing]

    @cached_property
    def _whole(self) -> LayerRecipes:
        return LayerRecipes({} if self.is_exact else self._base, self.text)

    @cached_property
    def _base(self) -> Reads:
        """What the recipe quantises.

        Operands and GEMMs restrict each other: `dy` is dy in dgrad and wgrad, `wgrad` is dy and x in wgrad, and both
        together are dy in wgrad alone.
        """
        gemms = [part for part in self.only if part in GEMM_NAMES]
        operands = [part for part in self.only if part not in GEMM_NAMES]
        return {
            (gemm, tensor): self.recipe
            for gemm, tensor in READS
            if (not gemms or gemm in gemms) and (not operands or tensor in operands)
        }


def _near(word: str, known: Sequence[str]) -> str:
    near = nearest(word, known)
    return f" (nearest: {', '.join(near)})" if near else ""
