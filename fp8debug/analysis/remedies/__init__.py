"""The cheapest change that brings an operand inside the rules, and the smallest set of layers to keep in BF16.

What computes is imported when first used: a report of a healthy run needs no numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fp8debug.analysis.remedies.remedy import KINDS, Remedy, Trial

__all__ = ["KINDS", "Fallback", "Remedy", "Trial", "fallback", "plan_of", "recipe_in_use", "search"]

_HOMES = {
    "Fallback": "layer_set",
    "fallback": "layer_set",
    "plan_of": "plan",
    "recipe_in_use": "in_use",
    "search": "searching",
}

if TYPE_CHECKING:
    from fp8debug.analysis.remedies.in_use import recipe_in_use
    from fp8debug.analysis.remedies.layer_set import Fallback, fallback
    from fp8debug.analysis.remedies.plan import plan_of
    from fp8debug.analysis.remedies.searching import search
else:
    # Hidden from type checkers, which would otherwise take any misspelt name for one of these.
    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
