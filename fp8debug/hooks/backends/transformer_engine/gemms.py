"""Transformer Engine's modules as GEMM layers: which they are, and where each GEMM finds its weight and its state."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn

PACKAGE = "transformer_engine"
TENSORS = {"activation": "x", "weight": "w", "gradient": "dy", "output": "y", "dgrad": "dx", "wgrad": "dw"}
"""Transformer Engine's words for tensors → ours."""


class TEGemm(NamedTuple):
    """One of the GEMMs of a module."""

    suffix: str
    """What Transformer Engine puts after the module's name: fc1, gemm_0; empty where there is one GEMM."""
    parameter: str
    """Name of the weight in the module."""
    place: int
    """Its number in the module: the FP8 state has 3 forward and 2 backward slots a GEMM, in this order."""

    def name(self, module: str) -> str:
        """Name of the GEMM below a module called `module`."""
        return f"{module}.{self.suffix}" if self.suffix else module

    def slot(self, tensor: str) -> int:
        """Place of x, w or dy in the state of its direction."""
        return 2 * self.place if tensor == "dy" else 3 * self.place + (tensor == "w")


_ONE = (TEGemm("", "weight", 0),)
_FUSED = (TEGemm("fc1", "fc1_weight", 0), TEGemm("fc2", "fc2_weight", 1))
_KINDS = ("Linear", "LayerNormLinear", "LayerNormMLP", "GroupedLinear")


def te_kind(module: nn.Module) -> str | None:
    """Which of the GEMM modules `module` is, or inherits from; None when it is none."""
    for cls in type(module).__mro__:
        if cls.__name__ in _KINDS and cls.__module__.partition(".")[0] == PACKAGE:
            return cls.__name__
    return None


def te_gemms(module: nn.Module, kind: str) -> tuple[TEGemm, ...]:
    """The GEMMs of a module of a known kind, in the order of its FP8 state."""
    if kind == "LayerNormMLP":
        return _FUSED
    if kind == "GroupedLinear":
        n: Any = module.num_gemms
        return tuple(TEGemm(f"gemm_{i}", f"weight{i}", i) for i in range(int(n)))
    return _ONE


def te_features(module: nn.Module, gemm: TEGemm) -> tuple[int, int]:
    """(K, N) of a GEMM as this process computes it."""
    weight = module._parameters.get(gemm.parameter)
    if weight is not None and weight.dim() == 2:
        n, k = weight.shape
        return int(k), int(n)
    made: Any = module
    return int(made.in_features), int(made.out_features)
