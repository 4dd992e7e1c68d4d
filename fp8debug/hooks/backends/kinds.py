"""Modules that are GEMM layers: how they are recognised, and how their weight is read as (N, K)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True, slots=True)
class Kind:
    """One way for a module to be a GEMM layer."""

    name: str
    matches: Callable[[nn.Module], bool]
    features: Callable[[nn.Module], tuple[int, int]]
    """(K, N) of the GEMM as this process computes it."""
    transposed: bool = False
    """Whether the weight is stored as (K, N)."""


KINDS = (Kind("Linear", lambda m: isinstance(m, nn.Linear), lambda m: (int(m.in_features), int(m.out_features))),)  # type: ignore[arg-type]


def kind_of(module: nn.Module) -> Kind | None:
    """The kind of GEMM layer that `module` is; None when it is none."""
    return next((kind for kind in KINDS if kind.matches(module)), None)
