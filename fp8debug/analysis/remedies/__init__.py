"""The cheapest change that brings an operand inside the rules, and the smallest set of layers to keep in BF16."""

from __future__ import annotations

from fp8debug.analysis.remedies.in_use import recipe_in_use
from fp8debug.analysis.remedies.remedy import KINDS, Remedy, Trial
from fp8debug.analysis.remedies.search import search

__all__ = ["KINDS", "Remedy", "Trial", "recipe_in_use", "search"]
