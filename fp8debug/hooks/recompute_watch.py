"""Whether activation checkpointing computes again what the forward had computed, bit for bit."""

from __future__ import annotations

from collections import Counter

from fp8debug.replay import Moment


class RecomputeWatch:
    """Checksums of x in the forwards of the step under way, to be found again when they are recomputed.

    A micro-batch may use a layer several times and recompute the uses in any order: what counts is which checksums
    there are, and how many of each. Nested checkpoints recompute several rounds.
    """

    def __init__(self) -> None:
        self._step = 0
        self._forwards: dict[str, dict[int, Counter[int]]] = {}
        self._left: dict[tuple[str, int], Counter[int]] = {}
        self._told: set[str] = set()

    def forward(self, layer: str, moment: Moment, checksum: int) -> None:
        """The x of a forward."""
        if moment.step != self._step:
            self._forwards.clear()
            self._left.clear()
            self._step = moment.step
        self._forwards.setdefault(layer, {}).setdefault(moment.microbatch, Counter())[checksum] += 1

    def differs(self, layer: str, moment: Moment, checksum: int) -> bool:
        """Whether the x of a recomputation is no forward's; True once a layer."""
        known = self._forwards.get(layer)
        if known is None or moment.step != self._step or layer in self._told:
            return False
        # A pipeline schedule recomputes a micro-batch while a later one is under way.
        for microbatch in sorted(known, key=lambda other: other != moment.microbatch):
            left = self._left.get((layer, microbatch))
            if not left:
                left = self._left[layer, microbatch] = known[microbatch].copy()
            if left[checksum]:
                left[checksum] -= 1
                self._left[layer, microbatch] = +left
                return False
        self._told.add(layer)
        return True
