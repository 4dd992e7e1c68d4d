"""Finding the models of a script that knows nothing of us: which live modules are roots, and what they are called.

A module's parents are read off the modules that live at the moment it is first called, so it does not matter how the
model was built (deep-copied, unpickled, layers inserted later), nor whether the script calls the model itself or a
method of it that calls a submodule.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable

import torch
from torch import nn
from torch.fx import GraphModule

from fp8debug.hooks.backends.finding import gemm_modules


def live_modules() -> list[nn.Module]:
    """Every nn.Module that lives, oldest first as far as the collector tells."""
    return [o for o in gc.get_objects() if issubclass(type(o), nn.Module)]


def parents_of(modules: Iterable[nn.Module]) -> dict[int, list[nn.Module]]:
    """id of a module → the modules that hold it as a child."""
    parents: dict[int, list[nn.Module]] = {}
    for parent in modules:
        children = parent.__dict__.get("_modules")
        for child in children.values() if children else ():
            if child is not None:
                parents.setdefault(id(child), []).append(parent)
    return parents


def top_ancestors(module: nn.Module, parents: dict[int, list[nn.Module]]) -> list[nn.Module]:
    """The outermost modules that hold `module`; itself when nobody does."""
    tops: dict[int, nn.Module] = {}
    seen: set[int] = set()
    waiting = [module]
    while waiting:
        current = waiting.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        above = parents.get(id(current))
        if above:
            waiting.extend(above)
        else:
            tops[id(current)] = current
    return list(tops.values())


def is_trainable(module: nn.Module) -> bool:
    """Whether any parameter below `module` asks for a gradient; a criterion without parameters does not."""
    return any(p.requires_grad for p in module.parameters())


def find_roots(called: nn.Module) -> list[nn.Module]:
    """Roots to capture once `called` runs: its own outermost module first, then other trainable models that live.

    Of several outermost modules that share `called`, the smallest is taken: the one that is about this model.
    """
    modules = live_modules()
    parents = parents_of(modules)
    tops = top_ancestors(called, parents)
    own = min(tops, key=lambda m: sum(1 for _ in m.modules()))
    others = [m for m in modules if id(m) not in parents and m is not own and not any(m is t for t in tops)]
    return [own, *(m for m in others if gemm_modules(m) and is_trainable(m))]


def living_roots() -> list[nn.Module]:
    """Outermost trainable models that live, whether or not any of them was called yet."""
    modules = live_modules()
    parents = parents_of(modules)
    tops = [m for m in modules if id(m) not in parents and not isinstance(m, GraphModule)]  # what a compiler has made
    return [m for m in tops if gemm_modules(m) and is_trainable(m)]


def owning_roots(optimizer: torch.optim.Optimizer) -> list[nn.Module]:
    """Outermost models with GEMM layers that own any of the optimizer's parameters."""
    stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return [root for root in living_roots() if any(id(p) in stepped for p in root.parameters())]
