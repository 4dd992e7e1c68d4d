"""The cheapest change that brings an operand inside the rules, and the smallest set of layers to keep in BF16."""

from __future__ import annotations

from fp8debug.analysis.remedies.fallback import Fallback, fallback
from fp8debug.analysis.remedies.in_use import recipe_in_use
from fp8debug.analysis.remedies.plan import plan_of
from fp8debug.analysis.remedies.remedy import KINDS, Remedy, Trial
from fp8debug.analysis.remedies.search import search

__all__ = ["KINDS", "Fallback", "Remedy", "Trial", "fallback", "plan_of", "recipe_in_use", "search"]
