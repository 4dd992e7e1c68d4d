"""All backends as one: each layer goes to the backend that reaches it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from fp8debug.hooks.backends.base import Backend, FoundLayer, Observer
from fp8debug.hooks.backends.dispatch.backend import DispatchBackend
from fp8debug.hooks.backends.modules import ModuleBackend
from fp8debug.hooks.backends.torchao import TorchaoBackend
from fp8debug.hooks.backends.transformer_engine import TransformerEngineBackend


class BackendRouter:
    """A `Backend` that makes the others when a layer asks for them."""

    def __init__(self) -> None:
        self._backends: dict[str, Backend] = {}

    def attach(self, model: nn.Module, layers: Sequence[FoundLayer], observer: Observer) -> None:
        """Start to report the operands of `layers`."""
        for name in dict.fromkeys(layer.backend for layer in layers):
            self._made(name).attach(model, [layer for layer in layers if layer.backend == name], observer)
        if observer.attention or {"key", "value"} & observer.tensors:  # no weight gives it away
            dispatch = self._made("dispatch")
            assert isinstance(dispatch, DispatchBackend)
            dispatch.attach_attention(model, layers[0].root if layers else type(model).__name__, observer)

    def _made(self, name: str) -> Backend:
        if name not in self._backends:
            self._backends[name] = _MAKERS[name]()
        return self._backends[name]

    def detach(self) -> None:
        """Have every backend remove what it put anywhere."""
        for backend in self._backends.values():
            backend.detach()


_MAKERS: dict[str, Callable[[], Backend]] = {
    "dispatch": DispatchBackend,
    "modules": ModuleBackend,
    "torchao": TorchaoBackend,
    "transformer_engine": TransformerEngineBackend,
}
