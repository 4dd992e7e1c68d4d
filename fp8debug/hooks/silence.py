"""Layers that train although no hook of theirs ran: said at the first optimizer step, not at the end of the run."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fp8debug.errors import some
from fp8debug.hooks.backends.compiled import forget_graphs
from fp8debug.hooks.clock import Clock
from fp8debug.hooks.recorder import Recorder
from fp8debug.hooks.roster import Roster


class SilenceCheck:
    """Looks once, after the first optimizer step that a known layer takes part in."""

    def __init__(self, roster: Roster, recorder: Recorder, clock: Clock, say: Callable[[str], None]) -> None:
        self._roster = roster
        self._recorder = recorder
        self._clock = clock
        self._say = say
        self._done = False

    def after_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Say which layers have a gradient without having been seen, and have their graphs made again."""
        if self._done:
            return
        names = self._roster.layer_of_weight()
        trained = [names[id(p)] for g in optimizer.param_groups for p in g["params"] if self._is_trained(p, names)]
        if not trained:
            return
        self._done = True
        fired = self._recorder.fired
        silent = [name for name in trained if name not in fired]
        if not silent:
            return
        step = self._clock.step
        if not fired:  # nor has the clock seen the step
            self._clock.missed()
        again = ": they ran inside graphs of torch.compile, which are made again" if forget_graphs() else ""
        text = f"{len(trained) - len(silent)} of {len(trained)} layers fired in step {step}{again}"
        self._say(f"fp8debug: {text} ({some(silent)})")
        message = f"trained, but not seen in step {step}{again}"
        for name in silent:
            self._recorder.event("history_absent", message, step=step, layer=name)

    def _is_trained(self, parameter: torch.Tensor, names: dict[int, str]) -> bool:
        if id(parameter) not in names or parameter.grad is None:
            return False
        module = self._roster.module(names[id(parameter)])
        return module is not None and module.training
