"""What a backend must do: find the GEMM layers of a model, and report their operands to an observer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from fp8debug.hooks.clock import Clock
from fp8debug.replay import Moment


@dataclass(frozen=True, slots=True)
class FoundLayer:
    """A GEMM layer of a model."""

    name: str
    raw_name: str
    root: str
    module: nn.Module
    in_features: int
    out_features: int


class Observer(Protocol):
    """Where a backend reports to. Every method may be called from an autograd thread."""

    clock: Clock
    tensors: frozenset[str]

    @property
    def active(self) -> bool:
        """False once fp8debug has disabled itself: report nothing more."""

    def observe(self, layer: str, tensor: str, value: torch.Tensor, gemm_dtype: torch.dtype, moment: Moment) -> None:
        """Measure one operand now; the tensor may change as soon as this returns."""

    def wants_weight(self, layer: str, moment: Moment) -> bool:
        """Whether `w` of the layer is still to be taken in this step."""

    def skip(self, layer: str, reason: str) -> None:
        """The layer cannot be captured; said once."""

    def fail(self, error: Exception) -> None:
        """An error of ours: disable everything, let the training go on."""


class Backend(Protocol):
    """A way of reaching GEMM operands."""

    def find(self, model: nn.Module, prefix: str) -> list[FoundLayer]:
        """All GEMM layers of `model` that this backend can capture, in module order."""

    def attach(self, layers: Sequence[FoundLayer], observer: Observer) -> None:
        """Start to report the operands of `layers`."""

    def detach(self) -> None:
        """Remove everything that `attach` put anywhere; safe to call twice."""
