"""The hooks on Transformer Engine's modules: they call the backend, and keep its errors from the training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fp8debug.hooks.backends.module_hook import ModuleHook
from fp8debug.hooks.backends.transformer_engine.passes import Pass, Watched

if TYPE_CHECKING:
    from fp8debug.hooks.backends.transformer_engine.backend import TransformerEngineBackend


class _Hook(ModuleHook):
    """Calls the backend; whatever goes wrong in there must not reach the training."""

    def __init__(self, backend: TransformerEngineBackend, watched: Watched) -> None:
        self._backend = backend
        self._watched = watched

    def _guarded(self, action: Callable[..., None], *args: Any) -> None:
        observer = self._backend.observer
        if observer is None or torch.compiler.is_compiling():
            return
        try:
            # What a CUDA graph replays calls no hook.
            if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
                self._backend.leave(observer, self._watched)
            else:
                action(observer, *args)
        except Exception as error:  # ours, never the training's
            observer.fail(error)


class BeforeForward(_Hook):
    """Forward pre-hook."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._guarded(self._backend.before_forward, module, self._watched)


class AfterForward(_Hook):
    """Forward hook."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        inputs = {
            "x": args[0] if args else kwargs.get("inp"),
            "m_splits": args[1] if len(args) > 1 else kwargs.get("m_splits"),
        }
        self._guarded(self._backend.after_forward, module, self._watched, inputs, output)


class OnGradient(_Hook):
    """Tensor hook on a module's output."""

    __torch_unserializable__ = True  # saves the warning when somebody saves the tensor

    def __init__(
        self,
        backend: TransformerEngineBackend,
        module: nn.Module,
        watched: Watched,
        taken: Pass,
        splits: Sequence[int] | None,
    ) -> None:
        super().__init__(backend, watched)
        self._module = module
        self._taken = taken
        self._splits = splits

    def __call__(self, gradient: torch.Tensor) -> None:
        self._guarded(self._backend.on_gradient, self._module, self._watched, self._taken, self._splits, gradient)
