"""The GEMM layers of a model, each with the backend that reaches it."""

from __future__ import annotations

from collections import Counter

from torch import nn

from fp8debug.hooks.backends.base import FoundLayer
from fp8debug.hooks.backends.kinds import kind_of
from fp8debug.hooks.selection import canonical_name, global_name


def find_layers(model: nn.Module, prefix: str = "", backend: str = "auto") -> list[FoundLayer]:
    """All GEMM layers below `model`, in module order; a module reached by two names is listed under its first.

    Layers whose names differ only in wrappers keep their raw names.

    Args:
        prefix: put before every name; `Model#1.` where there are several models.
        backend: as `CaptureOptions.backend`.
    """
    layers = [(raw, module, kind) for raw, module in model.named_modules() if (kind := kind_of(module)) is not None]
    numbers = _global_numbers(model)
    names = {raw: canonical_name(global_name(raw, numbers)) for raw, *_ in layers}
    uses = Counter(names.values())
    found = []
    for raw, module, kind in layers:
        canonical = names[raw]
        k, n = kind.features(module)
        found.append(
            FoundLayer(
                name=prefix + ((canonical if uses[canonical] == 1 else raw) or type(module).__name__),
                raw_name=raw,
                root=prefix.rstrip(".") or type(model).__name__,
                module=module,
                in_features=k,
                out_features=n,
                kind=kind.name,
            )
        )
    return found


def gemm_modules(model: nn.Module) -> set[nn.Module]:
    """Modules below `model` that own the weight of a GEMM."""
    return {module for module in model.modules() if kind_of(module) is not None}


def _global_numbers(model: nn.Module) -> dict[str, int]:
    """Raw name of each module whose number in the whole model is not its own: a pipeline stage counts from 0.

    Megatron's `layer_number` counts from 1. Where it is less than that, it means something else.
    """
    numbers = {}
    for raw, module in model.named_modules():
        number, own = module.__dict__.get("layer_number"), raw.rpartition(".")[2]
        if isinstance(number, int) and own.isdecimal() and number - 1 > int(own):
            numbers[raw] = number - 1
    return numbers
