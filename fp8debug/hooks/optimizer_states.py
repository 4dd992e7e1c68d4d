"""States of Adam-like optimizers as tensors: `m` is exp_avg, `v` is exp_avg_sq of a layer's weight, after the step.

They are records of the step that the optimizer has just ended, in pass `backward`: like `dw` they are of the weight as
a whole, whatever the micro-batches. Health is taken at every step, so that simulated histories have no gap; it reads as
many bytes as the states have. Of amsgrad, `v` is exp_avg_sq itself, not its running maximum.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import nn

from fp8debug.hooks.backends.base import FoundLayer, Observer
from fp8debug.hooks.backends.kinds import KINDS
from fp8debug.hooks.backends.placement import WeightPlacements, placement_of
from fp8debug.hooks.observed import Observed
from fp8debug.replay import Moment

STATES = {"m": "exp_avg", "v": "exp_avg_sq"}
"""Our words, and what Adam and its relatives call them."""
_TRANSPOSED = frozenset(kind.name for kind in KINDS if kind.transposed)


class _Weight(NamedTuple):
    """Where the weight of a layer is found; the module keeps it, we do not."""

    layer: FoundLayer
    module: weakref.ref[nn.Module]
    placements: WeightPlacements


class OptimizerStates:
    """Reports the states to an observer, when asked after an optimizer step."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._weights: list[_Weight] = []
        self._without: set[str] = set()
        self._step: int | None = None
        self._calls: Counter[tuple[str, str]] = Counter()
        self._mine: dict[int, tuple[_Weight, nn.Module]] = {}
        """By id of the parameter; a shared one belongs to its first layer."""

    def add(self, model: nn.Module, layers: Sequence[FoundLayer]) -> None:
        """Look out for the weights of `layers`, which are below `model`."""
        placements = WeightPlacements(model)
        nobody = nn.Module()
        self._weights += [
            _Weight(replace(layer, module=nobody), weakref.ref(layer.module), placements) for layer in layers
        ]

    def observe(self, optimizer: torch.optim.Optimizer) -> None:
        """Report what `optimizer` keeps of our weights; it has just stepped."""
        wanted = [tensor for tensor in STATES if tensor in self._observer.tensors]
        if not wanted or not self._observer.active:
            return
        step = self._observer.clock.step
        if step != self._step:
            self._step = step
            self._calls.clear()
            self._find()
        n_updated = n_found = 0
        for weight, module, parameter in self._owned(optimizer):
            n_updated += parameter.grad is not None
            state = optimizer.state.get(parameter) or {}
            for tensor in wanted:
                value = state.get(STATES[tensor])
                if isinstance(value, torch.Tensor) and value.dim() > 0:
                    self._report(weight, module, tensor, value, step)
                    n_found += 1
        if n_updated and not n_found:
            self._say_without(type(optimizer).__name__)

    def _owned(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[_Weight, nn.Module, torch.Tensor]]:
        """Weights that are both in the optimizer and in a layer."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                found = self._mine.get(id(parameter))
                if found is not None:
                    yield (*found, parameter)

    def _find(self) -> None:
        """Once a step: wrappers may replace parameters."""
        self._mine.clear()
        for weight in self._weights:
            module = weight.module()
            parameter = None if module is None else module._parameters.get(weight.layer.parameter)
            if module is not None and parameter is not None:
                self._mine.setdefault(id(parameter), (weight, module))

    def _report(self, weight: _Weight, module: nn.Module, tensor: str, value: torch.Tensor, step: int) -> None:
        layer = weight.layer
        if layer.kind in _TRANSPOSED:
            value = value.transpose(-1, -2)
        local, placement = placement_of(_dequantized(value))
        placement = weight.placements.of(module, layer.parameter, value, placement, step)
        call = self._calls[layer.name, tensor]
        self._calls[layer.name, tensor] = call + 1
        moment = Moment(step, 0, call, "backward")
        self._observer.observe(Observed(layer.name, tensor, local, local.dtype, moment, placement=placement))

    def _say_without(self, optimizer: str) -> None:
        if optimizer not in self._without:
            self._without.add(optimizer)
            self._observer.note("not_captured", f"{optimizer} keeps no exp_avg and exp_avg_sq: no m and v of it")


def _dequantized(value: torch.Tensor) -> torch.Tensor:
    """States that are stored in 8 bits, as torchao's optimizers do, as the numbers that they stand for."""
    if type(value) is torch.Tensor or hasattr(value, "placements"):
        return value
    with torch.no_grad():
        return value.dequantize() if hasattr(value, "scale") else value
