"""What the three GEMMs of one emulated layer read their operands in."""

from __future__ import annotations

from collections.abc import Mapping

from fp8debug.gemms import GEMMS, READS
from fp8debug.plans import BF16
from fp8debug.recipes import BlockRecipe, Recipe

Reads = Mapping[tuple[str, str], Recipe]
"""By (GEMM, tensor); what is absent is read in high precision."""


class LayerRecipes:
    """A recipe for each operand of each GEMM, or none."""

    def __init__(self, reads: Reads, text: str) -> None:
        self.text = text
        """What a person reads of it, such as `delayed, w: current, wgrad in bf16`."""
        self.reads = reads
        self._of_tensor: dict[str, tuple[Recipe, ...]] = {}
        for tensor in ("x", "w", "dy"):
            distinct = {recipe.text: recipe for (_, name), recipe in reads.items() if name == tensor}
            self._of_tensor[tensor] = tuple(distinct.values())
        self._rotated = {gemm for gemm in GEMMS if any(self._rotates_itself(gemm, *side) for side in GEMMS[gemm])}

    def recipe(self, gemm: str, tensor: str) -> Recipe | None:
        """What the GEMM reads the operand in; None: high precision."""
        return self.reads.get((gemm, tensor))

    def recipes_of(self, tensor: str) -> tuple[Recipe, ...]:
        """What x, w or dy is cast to, by whatever GEMM reads it."""
        return self._of_tensor[tensor]

    def is_left_to_rotate(self, gemm: str, tensor: str, orientation: str) -> bool:
        """Whether the other operand of the GEMM comes rotated, and this one does not: it cancels only in both."""
        return gemm in self._rotated and not self._rotates_itself(gemm, tensor, orientation)

    def _rotates_itself(self, gemm: str, tensor: str, orientation: str) -> bool:
        recipe = self.recipe(gemm, tensor)
        return isinstance(recipe, BlockRecipe) and recipe.rotates(tensor, orientation)


def departures_text(before: Reads, after: Reads) -> str:
    """How `after` differs from `before`: `w: current, wgrad in bf16`; empty where it does not."""
    left = {key: _name(after.get(key)) for key in READS if after.get(key) != before.get(key)}
    if len(left) == len(READS) and len(set(left.values())) == 1:
        return f"all in {next(iter(left.values()))}"
    gemms = []
    for gemm in GEMMS:
        own = [key for key in READS if key[0] == gemm and key in {*before, *after}]
        changes = {left.get(key) for key in own}
        if own and len(changes) == 1 and None not in changes:
            gemms.append(f"{gemm} in {left[own[0]]}")
            for key in own:
                del left[key]
    return ", ".join([*_operand_texts(left, before, after), *gemms])


def _operand_texts(left: Mapping[tuple[str, str], str], before: Reads, after: Reads) -> list[str]:
    texts = []
    for tensor in ("x", "w", "dy"):
        changes = {gemm: change for (gemm, name), change in left.items() if name == tensor}
        same = [gemm for gemm, name in READS if name == tensor and gemm not in changes and (gemm, name) in after]
        unchanged = [gemm for gemm in same if after[gemm, tensor] == before.get((gemm, tensor))]
        if len(set(changes.values())) == 1 and not unchanged:
            texts.append(f"{tensor}: {next(iter(changes.values()))}")
        else:
            texts += [f"{tensor} in {gemm}: {change}" for gemm, change in changes.items()]
    return texts


def _name(recipe: Recipe | None) -> str:
    return BF16 if recipe is None else recipe.text
