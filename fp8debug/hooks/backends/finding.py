"""The GEMM layers of a model, each with the backend that reaches it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from typing import NamedTuple

from torch import nn

from fp8debug.hooks.backends.base import FoundLayer
from fp8debug.hooks.backends.kinds import kind_of
from fp8debug.hooks.backends.transformer_engine.gemms import te_features, te_gemms, te_kind
from fp8debug.hooks.selection import canonical_name, global_name

PARAMETER = "parameter"
"""Kind of a layer that is a weight of no module of a known kind."""
_NO_GEMMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.batchnorm._NormBase, nn.modules.conv._ConvNd)
_TABLES = (nn.Embedding, nn.EmbeddingBag)


class _Weight(NamedTuple):
    raw_name: str
    """Of the layer."""
    module: nn.Module
    features: tuple[int, int]
    backend: str
    kind: str
    parameter: str = "weight"


def find_layers(model: nn.Module, prefix: str = "", backend: str = "auto") -> list[FoundLayer]:
    """All GEMM layers below `model`, in module order; a module reached by two names is listed under its first.

    Layers whose names differ only in wrappers keep their raw names. A weight of no module of a known kind is a layer by
    its own name; whether it ever is in a GEMM shows when the model runs.

    Args:
        prefix: put before every name; `Model#1.` where there are several models.
        backend: as `CaptureOptions.backend`.
    """
    layers = list(_weights(model, backend))
    numbers = _global_numbers(model)
    names = {raw: canonical_name(global_name(raw, numbers)) for raw, *_ in layers}
    uses = Counter(names.values())
    found = []
    for raw, module, (k, n), reached_by, kind, parameter in layers:
        canonical = names[raw]
        found.append(
            FoundLayer(
                name=prefix + ((canonical if uses[canonical] == 1 else raw) or type(module).__name__),
                raw_name=raw,
                root=prefix.rstrip(".") or type(model).__name__,
                module=module,
                in_features=k,
                out_features=n,
                backend=reached_by,
                kind=kind,
                parameter=parameter,
            )
        )
    return found


def new_layers(
    roots: Sequence[nn.Module], known: Set[nn.Module], n_before: int, backend: str
) -> list[tuple[nn.Module, list[FoundLayer]]]:
    """The GEMM layers of each root that has new ones: roots may share layers, and wrappers come around known models.

    Args:
        known: modules whose layers are not new.
        n_before: models that there were before, which the names of further ones count on.
        backend: as `CaptureOptions.backend`.
    """
    fresh: list[tuple[nn.Module, set[nn.Module]]] = []
    taken = set(known)
    for root in roots:
        if new := gemm_modules(root) - taken:
            fresh.append((root, new))
            taken |= new
    prefixes = _prefixes([root for root, _ in fresh], n_before)
    return [
        (root, [layer for layer in find_layers(root, prefix, backend) if layer.module in new])
        for (root, new), prefix in zip(fresh, prefixes, strict=True)
    ]


def _prefixes(fresh: Sequence[nn.Module], n_before: int) -> list[str]:
    """No prefix for a model that is alone; `Class#k.` in order of appearance for several."""
    if len(fresh) == 1 and n_before == 0:
        return [""]
    return [f"{type(root).__name__}#{n_before + k}." for k, root in enumerate(fresh)]


def gemm_modules(model: nn.Module) -> set[nn.Module]:
    """Modules below `model` that own the weight of a GEMM, or what may be one."""
    return {weight.module for weight in _weights(model, "auto")}


def _weights(model: nn.Module, backend: str) -> Iterator[_Weight]:
    silent = {id(m.out_proj) for m in model.modules() if isinstance(m, nn.MultiheadAttention)}  # read, never called
    for raw, module in model.named_modules():
        kind, fused = kind_of(module), te_kind(module)
        if fused is not None:
            for gemm in te_gemms(module, fused):
                name = f"{raw}.{gemm.suffix}".strip(".")
                yield _Weight(name, module, te_features(module, gemm), "transformer_engine", fused, gemm.parameter)
        elif kind is not None:
            by_dispatch = backend == "dispatch" or (backend == "auto" and id(module) in silent)
            yield _Weight(raw, module, kind.features(module), "dispatch" if by_dispatch else kind.backend, kind.name)
        elif backend == "dispatch" or (backend == "auto" and not isinstance(module, _TABLES)):
            yield from _bare_weights(raw, module)


def _bare_weights(raw: str, module: nn.Module) -> Iterator[_Weight]:
    """Parameters that may be weights by their shape: a table of vectors, or of one row, is none."""
    for name, parameter in () if isinstance(module, _NO_GEMMS) else module._parameters.items():
        if parameter is not None and parameter.dim() in (2, 3) and min(parameter.shape) != 1:
            n, k = parameter.shape[-2:]
            if parameter.is_floating_point():
                yield _Weight(f"{raw}.{name}".lstrip("."), module, (k, n), "dispatch", PARAMETER, name)


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
