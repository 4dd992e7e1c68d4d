"""Time where a model serves: a step is one forward of the model, unless the user ends the steps.

A script that calls parts of the model and never the model itself ends no step by that; `session.step()` does.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from fp8debug.hooks.backends.module_hook import ModuleHook
from fp8debug.hooks.clock import Clock


class ServedSteps:
    """Ends a step when a forward of a watched model returns."""

    def __init__(self, clock: Clock, fail: Callable[[Exception], None]) -> None:
        self._clock = clock
        self._fail = fail
        self._known: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._handles: list[RemovableHandle] = []
        clock.serves = True

    def watch(self, model: nn.Module) -> None:
        """Take each forward of `model` for a step."""
        if model not in self._known:
            self._known.add(model)
            self._handles.append(model.register_forward_hook(_AfterForward(self._clock, self._fail)))

    def stop(self) -> None:
        """Remove our hooks; safe to call twice."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


class _AfterForward(ModuleHook):
    def __init__(self, clock: Clock, fail: Callable[[Exception], None]) -> None:
        self._clock = clock
        self._fail = fail

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        try:
            self._clock.forward_returned()
        except Exception as error:  # ours, never the script's
            self._fail(error)
