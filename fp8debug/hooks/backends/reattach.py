"""Hooks that a later replacement of a module takes away: noticed before the next forward, and put on again.

Conversion to FP8 after attaching, quantisers, adapters and plain `model.fc = new` all put other modules in the place of
those that are hooked, without a word. The module tree is compared at each forward of the model and at each step.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from fp8debug.errors import some
from fp8debug.hooks.backends.base import FoundLayer, Observer
from fp8debug.hooks.backends.finding import find_layers
from fp8debug.hooks.backends.module_hook import ModuleHook
from fp8debug.hooks.clock import in_backward
from fp8debug.hooks.say import count_layers
from fp8debug.hooks.transforms import outside_transforms

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)  # looked at although they may be empty yet


class Structure:
    """Which modules a model holds; keeps none of them alive.

    What is compared is a hash of their addresses, in one pass over all containers: 30 us for 200 layers. An address may
    be taken by a new module once an old one has died, so that a death counts as a change too.
    """

    def __init__(self, model: nn.Module) -> None:
        holders = [module for module in model.modules() if module._modules or isinstance(module, _CONTAINERS)]
        self._dead: list[object] = []
        self._holders = [weakref.ref(holder, self._dead.append) for holder in holders]
        held = chain.from_iterable(holder._modules.values() for holder in holders)
        self._held = [weakref.ref(module, self._dead.append) for module in held if module is not None]
        self._hash = self._hash_now()

    def changed(self) -> bool:
        """Whether any module came, went or moved since this was made."""
        return bool(self._dead) or self._hash_now() != self._hash

    def _hash_now(self) -> int:
        # None of them is dead: that would have been noticed before.
        return hash(tuple(chain.from_iterable([holder()._modules.values() for holder in self._holders])))  # type: ignore[union-attr]


@dataclass(slots=True)
class Watched:
    """A model whose layers are hooked."""

    prefix: str
    structure: Structure
    handle: RemovableHandle
    modules: dict[str, weakref.ref[nn.Module]] = field(default_factory=dict)
    """Name of each layer known, taken or not, and its module."""


class Reattachment:
    """Watches the models of one session."""

    def __init__(
        self,
        observer: Observer,
        backend: str,
        attach: Callable[[nn.Module, Sequence[FoundLayer]], object],
        say: Callable[[str], None],
    ) -> None:
        """Args:
        backend: as `CaptureOptions.backend`.
        attach: called with a model and its layers that are new or have new modules; calls `watch` in turn.
        """
        self._observer = observer
        self._backend = backend
        self._attach = attach
        self._say = say
        self._models: weakref.WeakKeyDictionary[nn.Module, Watched] = weakref.WeakKeyDictionary()
        self._names: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()

    def watch(self, model: nn.Module, found: Sequence[FoundLayer]) -> None:
        """These layers of the model are known now: hooked, or not asked for."""
        watched = self._models.get(model)
        if watched is None:
            root = found[0].root if found else ""
            prefix = f"{root}." if root != type(model).__name__ and root else ""
            handle = model.register_forward_pre_hook(BeforeForward(self))
            watched = self._models[model] = Watched(prefix, Structure(model), handle)
        for layer in found:
            watched.modules[layer.name] = weakref.ref(layer.module)
            self._names[layer.module] = layer.name

    def check(self) -> None:
        """Look whether any model has other modules than before; if so, hook what is new."""
        for model, watched in list(self._models.items()):
            if watched.structure.changed():
                self._look_again(model, watched)

    def known(self) -> set[nn.Module]:
        """Layers of all models, hooked or not asked for, as they are now."""
        self.check()
        return set(self._names)

    def before_forward(self) -> None:
        """A model is about to run."""
        if not self._observer.active or in_backward():
            return
        try:
            with outside_transforms():
                self.check()
        except Exception as error:  # ours, never the training's
            self._observer.fail(error)

    def stop(self) -> None:
        """Take our hooks off the models."""
        for watched in self._models.values():
            watched.handle.remove()
        self._models.clear()

    def _look_again(self, model: nn.Module, watched: Watched) -> None:
        watched.structure = Structure(model)
        found = find_layers(model, watched.prefix, self._backend)
        new = [layer for layer in found if layer.module not in self._names]
        names = {layer.name for layer in new}
        # A known module whose name has gone to another, as to a wrapper that is a layer itself, goes by its new one.
        moved = [layer for layer in found if layer.name not in names and self._names.get(layer.module) in names]
        here = {layer.module for layer in found}
        lost = [n for n, module in watched.modules.items() if n not in names and module() not in here]
        again = [layer.name for layer in new if layer.name in watched.modules]
        for name in lost:
            del watched.modules[name]
        if new:
            self._attach(model, [*new, *moved])
        added = [layer.name for layer in (*new, *moved) if layer.name not in again]
        self._tell("replaced", "hooked again", again, "reattached", "another module has its place: hooked again")
        self._tell("lost", "no longer in the model", lost, "lost_hooks", "no longer in the model: nothing is recorded")
        self._tell("new", "hooked", added)

    def _tell(self, kind: str, what: str, names: Sequence[str], event: str | None = None, message: str = "") -> None:
        taken = [name for name in names if self._observer.takes(name)]
        if not taken:
            return
        if event is not None:
            for name in taken:
                self._observer.note(event, message, name)
        self._say(f"fp8debug: {count_layers(len(taken), kind)} {what}: {some(taken)}")


class BeforeForward(ModuleHook):
    """Forward pre-hook of a model."""

    def __init__(self, reattachment: Reattachment) -> None:
        self._reattachment = reattachment

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if not torch.compiler.is_compiling():
            self._reattachment.before_forward()
