"""Modules that are GEMM layers: how they are recognised, and how their weight is read as (N, K).

Frameworks are recognised by the names of their classes, so that none of them is imported.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
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
    backend: str = "modules"
    """Which backend reaches it."""
    takes_weight: bool = False
    """Whether the caller may give another weight as the second argument or as `weight`: tied embeddings."""


def _is_called(pattern: str, package: str = "") -> Callable[[nn.Module], bool]:
    """Whether a class so named, from that package, is among a module's classes, and its weight is a matrix."""
    named = re.compile(pattern).fullmatch

    def matches(module: nn.Module) -> bool:
        classes = type(module).__mro__
        return any(named(c.__name__) and c.__module__.startswith(package) for c in classes) and _has_matrix(module)

    return matches


def _has_matrix(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    if weight is None:  # given with each call
        return hasattr(module, "input_size") and hasattr(module, "output_size")
    return isinstance(weight, torch.Tensor) and weight.dim() == 2


def _linear_features(module: Any) -> tuple[int, int]:
    return int(module.in_features), int(module.out_features)


def _conv1d_features(module: Any) -> tuple[int, int]:
    return int(module.weight.shape[0]), int(module.weight.shape[1])


def _megatron_features(module: Any) -> tuple[int, int]:
    """Of the weight, else of the sizes that both classes know; those of a split dimension win."""
    if getattr(module, "weight", None) is not None:
        return int(module.weight.shape[1]), int(module.weight.shape[0])
    k = getattr(module, "input_size_per_partition", None) or module.input_size
    n = getattr(module, "output_size_per_partition", None) or module.output_size
    return int(k), int(n)


KINDS = (
    *(
        Kind(name, _is_called(pattern), _megatron_features, takes_weight=True)
        for name, pattern in (
            ("ColumnParallelLinear", "ColumnParallelLinear"),
            ("RowParallelLinear", "RowParallelLinear"),
            ("LinearWithGradAccumulation", "LinearWithGradAccumulation.*"),
        )
    ),
    Kind("Float8Linear", _is_called("Float8Linear", "torchao."), _linear_features, backend="torchao"),
    Kind("Linear", lambda module: isinstance(module, nn.Linear), _linear_features),
    Kind("Conv1D", _is_called("Conv1D", "transformers."), _conv1d_features, transposed=True),
)


def kind_of(module: nn.Module) -> Kind | None:
    """The kind of GEMM layer that `module` is; None when it is none."""
    return next((kind for kind in KINDS if kind.matches(module)), None)
