"""Hooks on tensors: gradients are reported under the key of the forward that they belong to."""

from __future__ import annotations

from typing import NamedTuple

import torch

from fp8debug.hooks.backends.base import Observer
from fp8debug.hooks.backends.placement import placement_of
from fp8debug.hooks.observed import Observed, Placement
from fp8debug.replay import Moment


class Gemm(NamedTuple):
    """What all records of one tensor of one call have in common."""

    layer: str
    tensor: str
    dtype: torch.dtype
    """What the GEMM ran in."""
    precision_asked: str | None
    placement: Placement
    """Of a tensor that does not say its own."""

    def seen(self, value: torch.Tensor, moment: Moment) -> Observed:
        """The tensor with the placement that it says itself."""
        return self.observed(*placement_of(value, self.placement), moment)

    def observed(self, local: torch.Tensor, placement: Placement, moment: Moment) -> Observed:
        """What this rank holds of the tensor."""
        return Observed(
            self.layer,
            self.tensor,
            local,
            self.dtype,
            moment,
            precision_asked=self.precision_asked,
            placement=placement,
        )


class GradientHook:
    """Tensor hook that reports a gradient under the key of the forward it belongs to."""

    __torch_unserializable__ = True  # saves the warning when somebody saves the tensor

    def __init__(self, observer: Observer, gemm: Gemm, moment: Moment, shape: torch.Size) -> None:
        self._observer = observer
        self._gemm = gemm
        self._moment = moment._replace(pass_="backward")
        self._shape = shape

    def __call__(self, gradient: torch.Tensor) -> None:
        observer = self._observer
        if not observer.active:
            return
        try:
            observer.clock.backward()
            if self._gemm.tensor in observer.tensors:
                if gradient.shape != self._shape:  # that of the GEMM's own result
                    gradient = gradient.view(self._shape)
                observer.observe(self._gemm.seen(gradient, self._moment))
        except Exception as error:  # ours, never the training's
            observer.fail(error)


class WeightGradientHook:
    """Tensor hook on a weight: reports what one backward adds to its gradient, over all uses of the weight."""

    def __init__(self, observer: Observer, gemm: Gemm, transposed: bool) -> None:
        self._observer = observer
        self._gemm = gemm
        self._transposed = transposed

    def __call__(self, gradient: torch.Tensor) -> None:
        observer = self._observer
        if not observer.active:
            return
        try:
            oriented = gradient.detach().t() if self._transposed else gradient
            observer.observe(self._gemm.seen(oriented, observer.clock.weight_gradient()))
        except Exception as error:  # ours, never the training's
            observer.fail(error)
