"""The GEMM layers that a session knows, and what is missing of them at its end."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Sequence
from typing import NamedTuple

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from fp8debug.errors import some
from fp8debug.hooks.backends.base import FoundLayer
from fp8debug.hooks.emulate.emulation import emulated_text
from fp8debug.hooks.say import count_layers
from fp8debug.rundir import LayerInfo

_OUT_PROJ = NonDynamicallyQuantizableLinear.__name__
_READ_ONLY = "nn.MultiheadAttention reads its weight without calling it"


class Absence(NamedTuple):
    """A layer that was matched and never ran."""

    layer: str
    message: str


class Roster:
    """Layers of every model that was attached."""

    def __init__(self) -> None:
        self.roots: list[str] = []
        self.layers: list[LayerInfo] = []
        self._modules: dict[str, weakref.ref[nn.Module]] = {}
        self._weight_names: dict[str, str] = {}

    def add(self, found: Sequence[FoundLayer], taken: Collection[str]) -> None:
        """Enter layers of one model, in the place of those of the same names; those named in `taken` are recorded."""
        self._modules |= {layer.name: weakref.ref(layer.module) for layer in found if layer.name in taken}
        self._weight_names |= {layer.name: layer.parameter for layer in found}
        self.roots += sorted({layer.root for layer in found} - set(self.roots))
        known = {layer.name: layer for layer in self.layers}
        known |= {layer.name: layer_info(layer, matched=layer.name in taken) for layer in found}
        self.layers = list(known.values())

    def add_found(self, layer: FoundLayer, *, taken: bool) -> None:
        """Enter a layer of a known model that showed only while it ran."""
        if all(known.name != layer.name for known in self.layers):
            self.layers.append(layer_info(layer, matched=taken))

    def module(self, layer: str) -> nn.Module | None:
        """The module of a taken layer; None once it is gone."""
        reference = self._modules.get(layer)
        return None if reference is None else reference()

    def layer_of_weight(self) -> dict[int, str]:
        """Names of the taken layers by the id of the weight that they hold now."""
        weights = {
            name: module._parameters.get(self._weight_names[name])
            for name, reference in list(self._modules.items())
            if (module := reference()) is not None
        }
        return {id(weight): name for name, weight in reversed(weights.items()) if weight is not None}

    def absent(self, fired: Collection[str]) -> list[Absence]:
        """Layers that were matched but are not among `fired`."""
        return [
            Absence(
                layer.name,
                f"matched, but {_why_silent(layer)}",
            )
            for layer in self._silent(fired)
        ]

    def absence_line(self, fired: Collection[str]) -> str | None:
        """One line about all of them; None when every layer ran."""
        silent = self._silent(fired)
        if not silent:
            return None
        why = f" ({_READ_ONLY})" if all(map(_is_read_only, silent)) else ""
        return f"{count_layers(len(silent), 'matched')} never ran: {some([layer.name for layer in silent])}{why}"

    def _silent(self, fired: Collection[str]) -> list[LayerInfo]:
        return [layer for layer in self.layers if layer.matched and layer.name not in fired]


def layer_info(layer: FoundLayer, *, matched: bool) -> LayerInfo:
    """What a run says of a layer; `matched`: whether it is captured."""
    return LayerInfo(
        name=layer.name,
        raw_name=layer.raw_name,
        class_name=type(layer.module).__name__,
        root=layer.root,
        in_features=layer.in_features,
        out_features=layer.out_features,
        matched=matched,
        emulated=emulated_text(layer.module),
        backend=layer.backend,
        kind=layer.kind,
    )


def _is_read_only(layer: LayerInfo) -> bool:
    return layer.class_name == _OUT_PROJ and layer.backend == "modules"


def _why_silent(layer: LayerInfo) -> str:
    if layer.backend == "dispatch":
        return "no GEMM of it was seen"
    return _READ_ONLY if _is_read_only(layer) else "its forward hook never ran"
