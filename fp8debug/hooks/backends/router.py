"""All backends as one: each layer goes to the backend that reaches it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from fp8debug.hooks.backends.base import Backend, FoundLayer, Observer
from fp8debug.hooks.backends.modules import ModuleBackend
from fp8debug.hooks.backends.transformer_engine import TransformerEngineBackend


class BackendRouter:
    """A `Backend` that makes the others when a layer asks for them."""

    def __init__(self) -> None:
        self._backends: dict[str, Backend] = {}

    def attach(self, model: nn.Module, layers: Sequence[FoundLayer], observer: Observer) -> None:
        """Start to report the operands of `layers`."""
        for name in dict.fromkeys(layer.backend for layer in layers):
            backend = self._backends.get(name)
            if backend is None:
                backend = self._backends[name] = _MAKERS[name]()
            backend.attach(model, [layer for layer in layers if layer.backend == name], observer)

    def detach(self) -> None:
        """Have every backend remove what it put anywhere."""
        for backend in self._backends.values():
            backend.detach()


_MAKERS: dict[str, Callable[[], Backend]] = {
    "modules": ModuleBackend,
    "transformer_engine": TransformerEngineBackend,
}
