"""Optimizer steps, and the ones that a GradScaler skips: what the clock cannot see by itself.

Nothing of the script is changed; entry points of torch are wrapped while we watch and put back afterwards.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from fp8debug.hooks.backends.compiled import never_alone
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
        self._leaving: list[RemovableHandle] = []
        self._in_hook = False
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
        self._leaving += self._handles
        self._handles.clear()
        if not self._in_hook:  # else torch is just going through them; silent from now on, they go when we close
            for handle in self._leaving:
                handle.remove()
            self._leaving.clear()
        for owner, name, wrapper in self._wrapped:
            _ended.add(wrapper)
            while (outermost := getattr(owner, name)) in _ended:
                setattr(owner, name, outermost.__wrapped__)
        self._wrapped.clear()

    def _wrap(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():  # nothing real to see
                return original(*args, **kwargs)
            return around(original, *args, **kwargs)

        never_alone(wrapper)
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

    @contextmanager
    def _inside_hook(self) -> Iterator[None]:
        """While one of our hooks on optimizers runs."""
        self._in_hook = True
        try:
            yield
        finally:
            self._in_hook = False

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
        with self._inside_hook():
            self._ours(self._clock.optimizer_stepped)
