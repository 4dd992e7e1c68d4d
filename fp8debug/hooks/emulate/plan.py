"""What is emulated: the recipe, the layers that are kept out, and which operands of which GEMMs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fp8debug.blocks import GEMMS
from fp8debug.config import EMULATED_PARTS, GEMM_NAMES, BadValue, parse_some
from fp8debug.errors import UsageError
from fp8debug.hooks.selection import compile_patterns, matches_any, unmatched
from fp8debug.recipes import Recipe, parse_recipe


@dataclass(frozen=True, slots=True)
class EmulationPlan:
    """Settings of an emulation, checked."""

    recipe: Recipe
    keep: tuple[re.Pattern[str], ...] = ()
    """Layers that any of them matches stay in high precision."""
    only: tuple[str, ...] = ()
    """Operands (x, w, dy) and GEMMs (fprop, dgrad, wgrad); empty: all."""
    rolls: str = "microbatch"
    """When delayed histories advance: microbatch | step."""

    @classmethod
    def from_words(
        cls,
        recipe: str | Recipe,
        keep_bf16: Sequence[str] = (),
        only: str | Iterable[str] = (),
        *,
        rolls: str = "microbatch",
    ) -> EmulationPlan:
        """Check what a person wrote.

        Raises:
            UsageError: an unknown recipe, parameter, operand or GEMM, operands that no named GEMM reads, or a regex
                that does not compile.
        """
        words: object = only if isinstance(only, str) else list(only)
        try:
            parts = parse_some(*EMULATED_PARTS)(words) if words else ()
        except BadValue as error:
            raise UsageError(f"emulate only: got {only!r}; expected {error}") from error
        plan = cls(
            parse_recipe(recipe) if isinstance(recipe, str) else recipe,
            compile_patterns(keep_bf16, "--keep-bf16"),
            parts,
            rolls,
        )
        if not any(plan.casts(tensor) for tensor in ("x", "w", "dy")):
            reads = "; ".join(f"{gemm} reads {' and '.join(name for name, _ in GEMMS[gemm])}" for gemm in GEMMS)
            raise UsageError(f"emulate only: got {only!r}, which leaves nothing to emulate; {reads}")
        return plan

    @property
    def text(self) -> str:
        """The recipe, and what of it where that is not everything: `current, only dy,wgrad`."""
        return f"{self.recipe.text}, only {','.join(self.only)}" if self.only else self.recipe.text

    def keeps(self, name: str) -> bool:
        """Whether the layer called `name` stays in high precision."""
        return matches_any(self.keep, name)

    def unmatched(self, names: Iterable[str]) -> list[str]:
        """Patterns of `keep` that match none of `names`."""
        return unmatched(self.keep, list(names))

    def quantizes(self, tensor: str, gemm: str) -> bool:
        """Whether the GEMM reads this operand quantised.

        Operands and GEMMs restrict each other: `dy` is dy in dgrad and wgrad, `wgrad` is dy and x in wgrad, and both
        together are dy in wgrad alone.
        """
        gemms = [part for part in self.only if part in GEMM_NAMES]
        operands = [part for part in self.only if part not in GEMM_NAMES]
        return (not gemms or gemm in gemms) and (not operands or tensor in operands)

    def casts(self, tensor: str) -> bool:
        """Whether any GEMM reads this operand quantised."""
        return any(
            self.quantizes(tensor, gemm) for gemm, operands in GEMMS.items() if tensor in {name for name, _ in operands}
        )
