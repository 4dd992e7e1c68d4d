"""Layers of a run found again among the modules of a checkpoint."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from fp8debug.analysis.checkpoint.reference.naming import renamed


def matched_layers(layers: Iterable[str], modules: Iterable[str]) -> Mapping[str, str]:
    """The module of each layer that has one: of the same name, but for wrappers before it.

    A name that several would fit is left out.
    """
    left, right = renamed(layers, modules)
    fitting: dict[str, list[str]] = defaultdict(list)
    for module, name in right.items():
        fitting[name].append(module)
    found = {layer: fitting[name][0] for layer, name in left.items() if len(fitting[name]) == 1}
    uses = Counter(found.values())
    return {layer: module for layer, module in found.items() if uses[module] == 1}
