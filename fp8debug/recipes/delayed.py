"""Delayed scaling: the scale follows from the amaxes of earlier passes.

The arithmetic is the fused update of Transformer Engine's delayed_scaling.cu, bit for bit.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from fp8debug.formats import Format
from fp8debug.recipes.base import Recipe, bad_value, is_integer, quotient, require_choice

MARGIN_LIMIT = 32  # 2^32 covers the whole range of E5M2: more is a slip of the pen

_ONE = np.float32(1.0)


@dataclass(frozen=True, kw_only=True)
class DelayedScaling(Recipe):
    """The scale follows from the amaxes of earlier passes."""

    kind: ClassVar[str] = "delayed"
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = MappingProxyType(
        {"te": {}, "megatron": {"amax_history_len": 1, "amax_compute_algo": "most_recent"}}
    )
    amax_history_len: int = 1024
    """Passes that the window holds."""
    amax_compute_algo: str = "max"
    """max: largest of the window | most_recent: the last."""
    margin: int = 0
    """Powers of two that the scale is kept below the largest that fits."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice(self, "amax_compute_algo", ("max", "most_recent"))
        if not is_integer(self.amax_history_len) or self.amax_history_len < 1:
            raise bad_value(self.kind, "amax_history_len", self.amax_history_len, "an integer, 1 or more")
        if not is_integer(self.margin) or abs(self.margin) > MARGIN_LIMIT:
            expected = f"an integer from -{MARGIN_LIMIT} to {MARGIN_LIMIT}"
            raise bad_value(self.kind, "margin", self.margin, expected)

    def new_state(self, formats: Sequence[Format]) -> DelayedState:
        """A fresh history, shared by the scales of `formats`."""
        return DelayedState(self, formats)


class DelayedState:
    """Amax history and scales of one (layer, tensor, recipe).

    `observe` each pass, `roll` when the framework would update. Both take constant time, whatever the window:
    only amaxes that can still become the maximum are kept.
    """

    __slots__ = ("_candidates", "_maxima", "_most_recent", "_scales", "_slot", "amax_used", "history_len", "n_rolls",
                 "set_at_step")  # fmt: skip

    def __init__(self, recipe: DelayedScaling, formats: Sequence[Format]) -> None:
        self.history_len = recipe.amax_history_len
        """Length of the window."""
        self.n_rolls = 0
        """Rolls that consumed a non-zero amax."""
        self.amax_used: float | None = None
        """Amax that determined the scales; None while they are the initial 1."""
        self.set_at_step: int | None = None
        """Step whose roll set the scales; None while they are the initial 1."""
        self._most_recent = recipe.amax_compute_algo == "most_recent"
        self._maxima = {fmt.name: math.ldexp(fmt.max, -recipe.margin) for fmt in formats}
        self._scales = dict.fromkeys(self._maxima, _ONE)
        self._slot = 0.0
        self._candidates: deque[tuple[int, float]] = deque()  # (roll, amax): rolls ascend, amaxes descend

    @property
    def history_zeros(self) -> int:
        """Slots of the window that no amax has filled yet: a zero amax is never rolled in."""
        return max(0, self.history_len - self.n_rolls)

    def scale(self, fmt: Format) -> np.float32:
        """Scale in force for `fmt`, 1 until the first roll sets it."""
        return self._scales[fmt.name]

    def observe(self, amax: float) -> None:
        """Take the largest magnitude of one pass (a float32 value, 0 or more, infinity where x has one).

        The kernels keep the maximum of the bit patterns, so a NaN, once given, stays until the roll. They drop
        NaN *elements* before: give NaN only where the framework's own amax is NaN.
        """
        if amax > self._slot or amax != amax:
            self._slot = amax

    def roll(self, step: int) -> None:
        """Consume what was observed since the last roll and set the scales, as the fused kernel does.

        An amax of 0 changes nothing. NaN takes a slot and is ignored by `max`. While the deciding amax is infinite
        or NaN the scales stay, which after one infinity lasts as long as the window.
        """
        last, self._slot = self._slot, 0.0
        if last == 0:
            return
        self.n_rolls += 1
        amax = last if self._most_recent else self._window_maximum(last)
        if not 0 < amax < math.inf:
            return
        self.set_at_step = step
        if amax != self.amax_used:
            self.amax_used = amax
            self._scales = {name: quotient(maximum, amax) for name, maximum in self._maxima.items()}

    def _window_maximum(self, last: float) -> float:
        candidates, roll = self._candidates, self.n_rolls
        while candidates and candidates[-1][1] <= last:
            candidates.pop()
        if last == last:
            candidates.append((roll, last))
        while candidates and candidates[0][0] <= roll - self.history_len:
            candidates.popleft()
        return candidates[0][1] if candidates else 0.0
