"""Layers of a run found again among the modules of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_WRAPPERS = frozenset({"model", "module", "transformer", "language_model", "base_model", "backbone", "decoder"})


def matched_layers(layers: Sequence[str], modules: Sequence[str]) -> Mapping[str, str]:
    """The module of each layer that has one: of the same name, else of the same name but for wrappers before it.

    A name that several would fit is left out.
    """
    bare: dict[str, list[str]] = {}
    for module in modules:
        bare.setdefault(_bare(module), []).append(module)
    known, taken = set(modules), set[str]()
    found: dict[str, str] = {}
    for layer in layers:
        fits = [layer] if layer in known else bare.get(_bare(layer), [])
        if len(fits) == 1 and fits[0] not in taken:
            found[layer] = fits[0]
            taken.add(fits[0])
    return found


def _bare(name: str) -> str:
    parts = name.split(".")
    while len(parts) > 1 and parts[0] in _WRAPPERS:
        parts = parts[1:]
    return ".".join(parts)
