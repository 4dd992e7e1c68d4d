"""Stand-in: recipes, the state of delayed scaling, and `autocast`, at whose end the forward's scales are set."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from transformer_engine.pytorch import tensor as tensors


class Format(enum.Enum):
    """Element formats of forward and backward."""

    E4M3 = 1
    HYBRID = 2


@dataclass
class DelayedScaling:
    margin: int = 0
    fp8_format: Format = Format.HYBRID
    amax_history_len: int = 1024
    amax_compute_algo: Any = "max"
    scaling_factor_compute_algo: Any = None


@dataclass
class Float8CurrentScaling:
    fp8_format: Format = Format.HYBRID


@dataclass
class MXFP8BlockScaling:
    fp8_format: Format = Format.E4M3


class RecipeState:
    """Scales and histories of one direction of one module, and its quantizers."""

    def __init__(self, recipe: Any, forward: bool, n: int) -> None:
        self.recipe = recipe
        hybrid = recipe.fp8_format is Format.HYBRID
        self.dtype = tensors.DType.kFloat8E5M2 if hybrid and not forward else tensors.DType.kFloat8E4M3
        self.n = n
        if isinstance(recipe, DelayedScaling):
            self.scale = torch.ones(n)
            self.amax_history = torch.zeros(recipe.amax_history_len, n)

    def quantizer(self, slot: int) -> Any:
        if isinstance(self.recipe, DelayedScaling):
            return tensors.Float8Quantizer(self.scale[slot], self.amax_history[0, slot], self.dtype)
        if isinstance(self.recipe, Float8CurrentScaling):
            return tensors.Float8CurrentScalingQuantizer(self.dtype)
        return tensors.MXFP8Quantizer(self.dtype)

    def update(self) -> None:
        """What is done for all modules at once after a forward or a backward."""
        if not isinstance(self.recipe, DelayedScaling):
            return
        largest = torch.finfo(tensors.TORCH_DTYPES[self.dtype]).max
        window = self.amax_history
        for slot in range(self.n):
            if window[0, slot] == 0:
                continue
            amax = window[:, slot].max() if self.recipe.amax_compute_algo == "max" else window[0, slot].clone()
            self.scale[slot] = torch.div(torch.full_like(amax, largest / 2**self.recipe.margin), amax)
            window[:, slot] = torch.roll(window[:, slot], -1)
            window[0, slot] = 0


class FP8GlobalStateManager:
    """One for the process."""

    enabled = False
    recipe: Any = None
    first = False
    forward_states: list[RecipeState] = []  # noqa: RUF012
    backward_states: list[RecipeState] = []  # noqa: RUF012


@contextlib.contextmanager
def autocast(enabled: bool = True, recipe: Any = None) -> Iterator[None]:
    """Modules inside compute in FP8."""
    state = FP8GlobalStateManager
    before = state.enabled, state.recipe
    state.enabled, state.recipe, state.first = enabled, recipe or DelayedScaling(), True
    try:
        yield
    finally:
        state.enabled, state.recipe = before
        if enabled and torch.is_grad_enabled():
            for known in state.forward_states:
                known.update()
