"""Which changes are worth a trial for an operand, cheapest first."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fp8debug.recipes import CurrentScaling, DelayedScaling, Recipe, Static

MARGINS = (1, 2, 3, 4)
"""Bits of head room that are tried: more costs the small values more than it saves."""
HISTORY_LENS = (16, 64, 1024)
"""A history of 1 is the same as most_recent, which has its own turn."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """One change to a recipe with one scale a tensor."""

    kind: str
    recipe: Recipe


def proposals(recipe: Recipe, tensor: str) -> Iterator[Proposal]:
    """Per-tensor changes to `recipe` for `tensor`; none for a block recipe, since they would not be cheaper."""
    if isinstance(recipe, DelayedScaling):
        for bits in MARGINS:
            yield Proposal("margin", replace(recipe, margin=recipe.margin + bits))
        for length in _other_lengths(recipe):
            yield Proposal("history", replace(recipe, amax_compute_algo="max", amax_history_len=length))
        if recipe.amax_compute_algo == "max" and recipe.amax_history_len > 1:
            yield Proposal("most_recent", replace(recipe, amax_compute_algo="most_recent"))
    if isinstance(recipe, (DelayedScaling, CurrentScaling)):
        yield Proposal("format", replace(recipe, fp8_format=other_format(recipe, tensor)))
    if isinstance(recipe, (DelayedScaling, Static)):
        yield Proposal("current", CurrentScaling(fp8_format=recipe.fp8_format))


def other_format(recipe: Recipe, tensor: str) -> str:
    """E5M2 for an operand in E4M3 and the reverse, in the same flavour (FNUZ)."""
    name = recipe.formats_for(tensor)[0][0].name
    return name.replace("E5M2", "E4M3") if name.startswith("E5M2") else name.replace("E4M3", "E5M2")


def _other_lengths(recipe: DelayedScaling) -> list[int]:
    """Window lengths that differ from the one in force, nearest first."""
    now = recipe.amax_history_len if recipe.amax_compute_algo == "max" else 1
    return sorted((n for n in HISTORY_LENS if n != now), key=lambda n: abs(math.log(n / now)))
