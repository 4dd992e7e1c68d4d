"""Stand-in: the four modules with GEMMs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from transformer_engine.pytorch.module.base import Gemm, TransformerEngineBaseModule


def _weight(n: int, k: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(n, k) / k**0.5)


class Linear(TransformerEngineBaseModule):
    """x wᵀ; `payload` stands for a weight that exists in FP8 alone."""

    def __init__(self, in_features: int, out_features: int, name: str | None = None) -> None:
        super().__init__(name=name)
        self.in_features, self.out_features = in_features, out_features
        self.weight = _weight(out_features, in_features)
        self.payload: Any = None

    def forward(self, inp: torch.Tensor, is_first_microbatch: bool | None = None) -> torch.Tensor:
        first = self.prepare()
        y: torch.Tensor = Gemm.apply(inp, self.weight, self.payload, self.quantizers()[0], first)
        return y


class LayerNormLinear(Linear):
    """A norm before the GEMM, whose operand nobody outside sees."""

    def forward(self, inp: torch.Tensor, is_first_microbatch: bool | None = None) -> torch.Tensor:
        return super().forward(functional.layer_norm(inp, inp.shape[-1:]))


class LayerNormMLP(TransformerEngineBaseModule):
    """A norm and two GEMMs with GELU between them."""

    def __init__(self, hidden_size: int, ffn_hidden_size: int, name: str | None = None) -> None:
        super().__init__(2, name)
        self.fc1_weight = _weight(ffn_hidden_size, hidden_size)
        self.fc2_weight = _weight(hidden_size, ffn_hidden_size)

    def gemm_name(self, gemm: int) -> str:
        return f"{self.name}.fc{gemm + 1}"

    def forward(self, inp: torch.Tensor) -> torch.Tensor:
        first = self.prepare()
        one, two = self.quantizers()
        hidden: Any = Gemm.apply(functional.layer_norm(inp, inp.shape[-1:]), self.fc1_weight, None, one, first)
        y: torch.Tensor = Gemm.apply(functional.gelu(hidden), self.fc2_weight, None, two, False)
        return y


class GroupedLinear(TransformerEngineBaseModule):
    """One GEMM an expert, over its own rows."""

    def __init__(self, num_gemms: int, in_features: int, out_features: int, name: str | None = None) -> None:
        super().__init__(num_gemms, name)
        self.num_gemms, self.in_features, self.out_features = num_gemms, in_features, out_features
        for i in range(num_gemms):
            self.register_parameter(f"weight{i}", _weight(out_features, in_features))

    def gemm_name(self, gemm: int) -> str:
        return f"{self.name}.gemm_{gemm}"

    def forward(self, inp: torch.Tensor, m_splits: list[int]) -> torch.Tensor:
        first = self.prepare()
        rows, quantizers = inp.split(m_splits), self.quantizers()
        weights = [getattr(self, f"weight{i}") for i in range(self.n_gemms)]
        every = zip(rows, weights, quantizers, strict=True)
        return torch.cat([Gemm.apply(x, w, None, own, first and own is quantizers[0]) for x, w, own in every])
