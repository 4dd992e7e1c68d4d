"""Which layer a GEMM is: by the weight it reads, else by the module that is being called."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from torch import Tensor

from fp8debug.hooks.backends.base import FoundLayer
from fp8debug.hooks.backends.dispatch.gemms import Gemm
from fp8debug.hooks.backends.dispatch.provenance import Source, Weights, shares_storage
from fp8debug.hooks.backends.dispatch.scopes import Frame
from fp8debug.hooks.backends.finding import PARAMETER
from fp8debug.hooks.transforms import has_data


class Names:
    """The layers that are looked for."""

    def __init__(self, weights: Weights, frames: Callable[[], Sequence[Frame]]) -> None:
        self._weights = weights
        self._frames = frames
        self.layers: list[FoundLayer] = []
        self.owned: dict[int, list[FoundLayer]] = defaultdict(list)
        """Layers by the id of the module that owns them."""

    def add(self, layer: FoundLayer) -> None:
        """Look for one more layer, in the place of one of the same name."""
        for known in [known for known in self.layers if known.name == layer.name]:
            self.layers.remove(known)
            self.owned[id(known.module)].remove(known)
        self.layers.append(layer)
        self.owned[id(layer.module)].append(layer)

    def clear(self) -> None:
        """Look for nothing, and keep no module alive."""
        self.layers.clear()
        self.owned.clear()

    def look_up(self) -> None:
        """Know where the weights are now: a script may have moved or replaced them."""
        for layer in self.layers:
            weight = layer.module._parameters.get(layer.parameter)
            if weight is not None and has_data(weight):
                self._know(weight, layer)

    def _know(self, weight: Tensor, layer: FoundLayer) -> None:
        source = self._weights.source(weight)
        if source is not None and source.is_all_of(weight):
            if all(known is not layer for known in source.layers):
                self._weights.add(weight, (*source.layers, layer))
        else:
            self._weights.add(weight, (layer,))

    def named(self, gemm: Gemm, sources: Sequence[Source | None]) -> tuple[FoundLayer | None, bool, Source | None]:
        """The layer that a forward GEMM is, and which operand is its weight: by the weight, else by the module."""
        for source, is_b in ((sources[1], True), (sources[0], False)):
            if source is not None:
                return self.owner(source.layers), is_b, source
        frames = self._frames()
        for layer in self.owned.get(id(frames[-1].module), ()) if frames else ():
            size = layer.in_features, layer.out_features
            if layer.kind != PARAMETER and gemm.b.shape[-2:] == size:  # a weight that is computed on its way
                return layer, True, None
        return None, True, None

    def owner(self, layers: Sequence[FoundLayer]) -> FoundLayer | None:
        """Of layers that share a weight, the one that is being called."""
        if len(layers) > 1:
            for frame in reversed(self._frames()):
                for layer in layers:
                    if layer.module is frame.module:
                        return layer
        return layers[0] if layers else None

    def source(self, operand: Tensor) -> Source | None:
        """What an operand was made of; wrappers may have given a module another weight for this call."""
        source = self._weights.source(operand)
        if source is None:
            for frame in reversed(self._frames()):
                for layer in self.owned.get(id(frame.module), ()):
                    weight = layer.module._parameters.get(layer.parameter)
                    if weight is not None and shares_storage(weight, operand):
                        self._know(weight, layer)
                        return self._weights.source(operand)
        return source
