"""What hangs on the models of one session: hooked once they are known, again after replacements, and taken off."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from fp8debug.hooks.backends.base import FoundLayer
from fp8debug.hooks.backends.compiled import forget_graphs
from fp8debug.hooks.backends.reattach import Reattachment
from fp8debug.hooks.backends.router import BackendRouter
from fp8debug.hooks.emulate.emulation import Emulation
from fp8debug.hooks.observation import Observation
from fp8debug.hooks.optimizer_states import OptimizerStates
from fp8debug.hooks.recorder import Recorder
from fp8debug.hooks.roster import Roster
from fp8debug.hooks.serving import ServedSteps

Entered = Callable[[nn.Module, Sequence[FoundLayer], Sequence[str]], None]
"""Called with a model whose layers have been hooked, all of them, and the names of those that are recorded."""


class Attachment:
    """Hooks of every kind that one session has on models."""

    def __init__(
        self,
        observation: Observation,
        roster: Roster,
        recorder: Recorder,
        emulation: Emulation | None,
        *,
        entered: Entered,
        say: Callable[[str], None],
    ) -> None:
        options = observation.plan.options
        self._observation = observation
        self._roster = roster
        self._recorder = recorder
        self._emulation = emulation
        self._entered = entered
        self._say = say
        self._backends = BackendRouter()
        self._states = OptimizerStates(observation)
        self._serving = ServedSteps(observation.clock, observation.fail) if options.inference else None
        self._replacements = Reattachment(observation, options.backend, self.attach, say)

    def attach(self, model: nn.Module, found: Sequence[FoundLayer]) -> list[FoundLayer]:
        """Hook the selected ones of the layers of `model`, and enter them all; returns them all."""
        taken = [layer for layer in found if self._observation.takes(layer.name)]
        if self._emulation is not None:
            for name, reason in self._emulation.add(taken).items():
                self._recorder.event("not_emulated", reason, step=None, layer=name)
        self._hook(model, taken)
        if self._serving is not None:
            self._serving.watch(model)
        names = [layer.name for layer in taken]
        self._roster.add(found, set(names))
        self._replacements.watch(model, found)
        self._entered(model, found, names)
        return list(found)

    def attach_late(self, model: nn.Module, layers: Sequence[FoundLayer]) -> None:
        """Record layers that were found before; the training stays as it is, emulated or not."""
        self._hook(model, layers)
        self._roster.add(layers, {layer.name for layer in layers})
        self.forget_graphs()

    def forget_graphs(self) -> None:
        """Hooks have come to layers that may have been compiled before."""
        if forget_graphs():
            text = "what torch.compile has made so far is made again at its next call, so that layers in it are seen"
            self._observation.note("reattached", text)
            self._say(f"fp8debug: {text}")

    def known_modules(self) -> set[nn.Module]:
        """GEMM layers known now, those included that have come since into a model that is attached."""
        return self._replacements.known()

    def check(self) -> None:
        """Hook what has come into the models since the last look."""
        self._replacements.check()

    def after_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer has stepped: its states are there to be seen."""
        self._states.observe(optimizer)

    def remove(self) -> None:
        """Take every hook off; safe to call twice."""
        self._backends.detach()
        self._replacements.stop()
        if self._serving is not None:
            self._serving.stop()

    def _hook(self, model: nn.Module, layers: Sequence[FoundLayer]) -> None:
        self._backends.attach(model, layers, self._observation)
        self._states.add(model, layers)
