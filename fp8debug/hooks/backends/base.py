"""What a backend must do: report the operands of the layers it is given to an observer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import nn

from fp8debug.hooks.clock import Clock
from fp8debug.hooks.observed import Observed
from fp8debug.replay import Moment, ScaleInForce


@dataclass(frozen=True, slots=True)
class FoundLayer:
    """A GEMM layer of a model."""

    name: str
    raw_name: str
    root: str
    module: nn.Module
    """Owner of the weight."""
    in_features: int
    out_features: int
    backend: str = "modules"
    """Which backend reaches it: modules | dispatch | transformer_engine."""
    kind: str = "Linear"
    """What it is to us: a name of `fp8debug.hooks.backends.kinds`, `parameter` or `attention`."""
    parameter: str = "weight"
    """Name of the weight in `module`."""


class Observer(Protocol):
    """Where a backend reports to. Every method may be called from an autograd thread."""

    clock: Clock

    @property
    def active(self) -> bool:
        """False once fp8debug has disabled itself: report nothing more."""

    @property
    def tensors(self) -> frozenset[str]:
        """Which tensors are wanted; may change between two steps."""

    @property
    def attention(self) -> bool:
        """Whether the GEMMs inside attention are wanted."""

    @property
    def serves(self) -> bool:
        """Whether evaluation passes are what is recorded."""

    def is_sampled(self, step: int) -> bool:
        """Whether more than health is taken in `step`."""

    def takes(self, layer: str) -> bool:
        """Whether the layer is to be recorded; may change between two steps."""

    def observe(self, seen: Observed) -> None:
        """Measure one operand now; the tensor may change as soon as this returns."""

    def wants_weight(self, layer: str, moment: Moment) -> bool:
        """Whether `w` of the layer is still to be taken in this step; True once."""

    def miss(
        self,
        layer: str,
        tensor: str,
        moment: Moment,
        framework: Sequence[ScaleInForce] = (),
        amax: Callable[[], float] | None = None,
    ) -> None:
        """A training pass of a tensor that cannot be seen: it has no record, and histories know that they miss one.

        Args:
            framework: scales that the framework itself had in force.
            amax: the framework's own, asked for later, when nobody has to wait for the device; None: not known.
        """

    def found(self, layer: FoundLayer) -> bool:
        """A layer that showed only while the model ran; whether it is to be recorded."""

    def ran(self, layer: str) -> None:
        """The layer's module was called with nothing to record of it: it is not missing."""

    def skip(self, layer: str, reason: str) -> None:
        """The layer cannot be captured; said once."""

    def note(self, kind: str, message: str, layer: str | None = None, tensor: str | None = None) -> None:
        """Something that went wrong or is missing, as an event."""

    def fail(self, error: Exception) -> None:
        """An error of ours: disable everything, let the training go on."""


class Backend(Protocol):
    """A way of reaching GEMM operands."""

    def attach(self, model: nn.Module, layers: Sequence[FoundLayer], observer: Observer) -> None:
        """Start to report the operands of `layers`, which are all below `model`."""

    def detach(self) -> None:
        """Remove everything that `attach` put anywhere; safe to call twice."""
