"""Whose samples are kept from forward to backward, so that together they stay within a budget: layers take turns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shortage:
    """That not every layer that asked in a step had its turn."""

    n_layers: int
    """Layers that asked."""
    n_taken: int
    """Layers that had room."""
    n_bytes: int
    """What all of them would need."""


class Turns:
    """Gives room to layers, first to those that have waited longest."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget = budget_bytes
        self._sizes: dict[str, int] = {}  # as last asked for; a queue
        self._chosen: set[str] = set()
        self._reserved = 0
        self._asked: set[str] = set()
        self._taken: dict[str, int] = {}

    def ask(self, layer: str) -> bool:
        """Whether the layer may have its turn in this step: it was chosen, or it is new."""
        self._asked.add(layer)
        return layer in self._chosen or layer not in self._sizes

    def take(self, layer: str, n_bytes: int) -> bool:
        """Take room until the step ends; False when there is none."""
        if layer not in self._sizes and self._reserved + n_bytes <= self._budget:
            self._chosen.add(layer)
            self._reserved += n_bytes
        self._sizes[layer] = n_bytes
        if layer not in self._chosen or sum(self._taken.values()) + n_bytes > self._budget:
            return False
        self._taken[layer] = n_bytes
        return True

    def end_step(self) -> Shortage | None:
        """Free all room and choose who comes first in the next step; returns what was short."""
        asked = self._asked & self._sizes.keys()
        n_bytes = sum(self._sizes[layer] for layer in asked)
        shortage = Shortage(len(asked), len(self._taken), n_bytes) if len(self._taken) < len(asked) else None
        for layer in [name for name in self._sizes if name in self._taken or name in self._chosen - self._asked]:
            self._sizes[layer] = self._sizes.pop(layer)  # it had its turn, or did not run
        self._asked.clear()
        self._taken.clear()
        self._chosen, self._reserved = set(), 0
        for layer, size in self._sizes.items():
            if self._reserved + size <= self._budget:
                self._chosen.add(layer)
                self._reserved += size
        return shortage
