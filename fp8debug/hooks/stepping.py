"""Optimizer steps, and the ones that a GradScaler skips: what the clock cannot see by itself.

Nothing of the script is changed; entry points of torch are wrapped while we watch and put back afterwards.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from fp8debug.hooks.clock import Clock
from fp8debug.hooks.transforms import outside_transforms

_ended: WeakSet[Callable[..., Any]] = WeakSet()
"""Wrappers of ours that nobody needs, perhaps still below another one."""


class OptimizerWatch:
    """Tells a clock of every optimizer step."""

    def __init__(self, clock: Clock, fail: Callable[[Exception], None]) -> None:
        self._clock = clock
        self._fail = fail
        self._handles: list[RemovableHandle] = []
        self._wrapped: list[tuple[Any, str, Callable[..., Any]]] = []
        self.n_optimizer_steps = 0

    def start(self) -> None:
        """Begin to watch."""
        self._handles.append(register_optimizer_step_post_hook(self._after_optimizer))
        self._wrap(torch.amp.GradScaler, "step", self._around_scaler_step)

    def stop(self) -> None:
        """Put everything back that is still ours; safe to call twice.

        Of two watches the first to start may be the first to stop: the second then puts back what the first could not.
        """
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for owner, name, wrapper in self._wrapped:
            _ended.add(wrapper)
            while (outermost := getattr(owner, name)) in _ended:
                setattr(owner, name, outermost.__wrapped__)
        self._wrapped.clear()

    def _wrap(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs)

        setattr(owner, name, wrapper)
        self._wrapped.append((owner, name, wrapper))

    def _ours(self, note: Callable[..., None], *args: Any) -> None:
        if not self._handles:  # stopped, but somebody wrapped our wrapper, so that it is still called
            return
        try:
            with outside_transforms():
                note(*args)
        except Exception as error:  # ours, never the training's
            self._fail(error)

    def _around_scaler_step(self, original: Callable[..., Any], scaler: Any, *args: Any, **kwargs: Any) -> Any:
        before = self.n_optimizer_steps
        result = original(scaler, *args, **kwargs)
        if self.n_optimizer_steps == before:
            self._ours(self._note_skipped_step)
        return result

    def _note_skipped_step(self) -> None:
        self._clock.optimizer_stepped(skipped=True)

    def _after_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self.n_optimizer_steps += 1
        self._ours(self._clock.optimizer_stepped)
