"""A training script as the source of a model: it runs until its model is called for the first time to be trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fp8debug.hooks.autoattach import StopBeforeTraining
from fp8debug.hooks.backends.finding import gemm_modules
from fp8debug.hooks.clock import in_backward
from fp8debug.hooks.inference.passes import eagerly
from fp8debug.hooks.roots import find_roots, is_trainable


@dataclass(frozen=True, slots=True)
class FirstForward:
    """The model as it was called, and with what."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    n_layers_elsewhere: int
    """GEMM layers of the outermost model that are outside the module which was called."""


class _Reached(StopBeforeTraining):
    """Out of the script."""

    def __init__(self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        super().__init__(0)
        elsewhere = gemm_modules(find_roots(model)[0]) - gemm_modules(model)
        self.found = FirstForward(unwrapped(model), args, dict(kwargs), len(elsewhere))


def first_training_forward(program: Callable[[], None]) -> FirstForward | None:
    """Run `program` until a module with GEMM layers that is being trained is called; it is not run any more.

    Returns:
        None where the program ended before.

    Raises:
        BaseException: whatever the program raises.
    """
    with _calls_watched(), eagerly():
        try:
            program()
        except _Reached as reached:
            return reached.found
    return None


def unwrapped(model: nn.Module) -> nn.Module:
    """Without the wrappers of torch.compile and of data parallel training."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


@contextmanager
def _calls_watched() -> Iterator[None]:
    """Global hooks are not given keyword arguments: the call itself is wrapped."""
    original = nn.Module.__call__

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling() and module.training and not in_backward() and _is_model(module):
            raise _Reached(module, args, kwargs)
        return original(module, *args, **kwargs)

    nn.Module.__call__ = call  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.__call__ = original  # type: ignore[method-assign]


def _is_model(module: nn.Module) -> bool:
    return is_trainable(module) and bool(gemm_modules(module))
