"""One operand or result of one pass, reported with all that is known of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from fp8debug.hooks.backends.base import Observer
from fp8debug.hooks.backends.placement import megatron_placements, placement_of
from fp8debug.hooks.backends.transformer_engine.gemms import TEGemm
from fp8debug.hooks.backends.transformer_engine.operands import dtype_asked_of, state_of
from fp8debug.hooks.backends.transformer_engine.passes import Pass, Watched
from fp8debug.hooks.backends.transformer_engine.payloads import UnknownLayout, is_quantized, payload_of
from fp8debug.hooks.backends.transformer_engine.scaling_state import FrameworkScales
from fp8debug.hooks.backends.transformer_engine.wording import recipe_text
from fp8debug.hooks.observed import LOCAL, Observed, Payload, Placement
from fp8debug.replay import Moment

_MEGATRON_KINDS = {"column": "ColumnParallelLinear", "row": "RowParallelLinear"}


class Operand(NamedTuple):
    """Which tensor of which GEMM, in one pass of a module."""

    module: nn.Module
    watched: Watched
    gemm: TEGemm
    tensor: str
    taken: Pass

    @property
    def layer(self) -> str:
        """Our name of the GEMM."""
        return self.watched.layers[self.gemm]

    @property
    def moment(self) -> Moment:
        """The key of its record."""
        return self.taken.key(self.tensor)

    def scales(self) -> FrameworkScales | None:
        """What the module's own state had in force for it."""
        return self.watched.scales(state_of(self.module), self.gemm, self.tensor, self.taken)

    def is_due(self, observer: Observer) -> bool:
        """Whether it is wanted and was not reported in this pass; it is from now on."""
        key = (self.layer, self.tensor)
        if self.tensor not in observer.tensors or not observer.takes(self.layer) or key in self.taken.seen:
            return False
        self.taken.seen.add(key)
        return True


class Reporter:
    """Reports operands to an observer, and says once what of them cannot be seen."""

    def __init__(self) -> None:
        self._said: set[tuple[str, ...]] = set()

    def take_visible(self, observer: Observer, operand: Operand, value: torch.Tensor | None) -> None:
        """Report what goes in or out of a module: `value`, where it is this very operand in high precision."""
        if not operand.is_due(observer):
            return
        if isinstance(value, torch.Tensor) and not is_quantized(value):
            self._report(observer, operand, value)
        elif operand.tensor != "y":
            self._miss(observer, operand)

    def take_weight(self, observer: Observer, operand: Operand) -> None:
        """Report a weight as its module holds it."""
        layer, weight = operand.layer, operand.module._parameters.get(operand.gemm.parameter)
        if "w" not in observer.tensors or not observer.takes(layer):
            return
        if not observer.wants_weight(layer, operand.taken.moment):
            return
        if weight is not None and not is_quantized(weight):
            self._report(observer, operand, weight)
        elif weight is not None and operand.taken.sampled:
            self._report(observer, operand, None, weight, getattr(weight, "_quantizer", None))
        else:
            self._miss(observer, operand)

    def take_shown(
        self, observer: Observer, operand: Operand, value: torch.Tensor | None, quantized: Any, quantizer: Any
    ) -> None:
        """Report what the debug API shows, in high precision and quantised; either may be missing."""
        if not operand.is_due(observer):
            return
        if operand.tensor == "w" and not observer.wants_weight(operand.layer, operand.taken.moment):
            return
        self._report(observer, operand, value, quantized, quantizer)

    def note_once(self, observer: Observer, kind: str, message: str, *where: str) -> None:
        """Say something of a layer and a tensor, or of all of them."""
        if (kind, message, *where) not in self._said:
            self._said.add((kind, message, *where))
            observer.note(kind, message, *where)

    def _miss(self, observer: Observer, operand: Operand) -> None:
        """A tensor that only the debug API could show."""
        moment = operand.moment
        if moment.pass_ in ("eval", "recompute"):
            return
        layer, tensor, kind = operand.layer, operand.tensor, operand.watched.kind
        scales = operand.scales()
        collected = scales.collected_amax if scales is not None and tensor != "dy" else None
        observer.miss(layer, tensor, moment, scales or (), collected)
        if operand.taken.sampled:
            self.note_once(observer, "not_captured", f"it exists only inside {kind}: not recorded", layer, tensor)
        elif collected is None:
            message = f"between sampled steps nothing of it is seen, inside {kind}: simulated histories have gaps"
            self.note_once(observer, "history_absent", message, layer, tensor)

    def _report(
        self,
        observer: Observer,
        operand: Operand,
        value: torch.Tensor | None,
        quantized: Any = None,
        quantizer: Any = None,
    ) -> None:
        module, tensor, meta = operand.module, operand.tensor, state_of(operand.module)
        payload = self._payload(observer, operand, meta, quantized, quantizer)
        if value is None and payload is None:
            return
        shown = value if value is not None else payload.codes  # type: ignore[union-attr]
        activation = getattr(module, "activation_dtype", None)
        is_told = operand.taken.debugged or payload is not None
        local, placement = _place(operand, shown)
        observer.observe(
            Observed(
                operand.layer,
                tensor,
                local,
                shown.dtype if value is not None or activation is None else activation,
                operand.moment,
                framework=operand.scales() or (),
                precision_asked=dtype_asked_of(module, meta, tensor) if is_told else None,
                placement=placement,
                payload=payload,
            )
        )

    def _payload(
        self, observer: Observer, operand: Operand, meta: Any, quantized: Any, quantizer: Any
    ) -> Payload | None:
        if not is_quantized(quantized):
            return None
        recipe = meta.get("recipe") if isinstance(meta, Mapping) else None
        try:
            return payload_of(quantized, recipe_text(recipe, quantizer))
        except UnknownLayout as error:
            message = f"what its GEMM read is not recorded: {error}"
            self.note_once(observer, "not_captured", message, operand.layer, operand.tensor)
            return None


def _place(operand: Operand, value: torch.Tensor) -> tuple[torch.Tensor, Placement]:
    module, watched, gemm = operand.module, operand.watched, operand.gemm
    mode = getattr(module, "parallel_mode", None)
    if watched.kind == "LayerNormMLP" and getattr(module, "set_parallel_mode", False):
        mode = "row" if gemm.place else "column"
    inner = LOCAL
    if mode in _MEGATRON_KINDS and int(getattr(module, "tp_size", 1)) > 1:
        inner = megatron_placements(module, _MEGATRON_KINDS[mode], value.dim()).get(operand.tensor, LOCAL)
    local, placement = placement_of(value, inner)
    weight = module._parameters.get(gemm.parameter)
    if operand.tensor == "w" and weight is not None:
        placement = watched.placements.of(module, gemm.parameter, weight, placement, operand.taken.moment.step)
    return local, placement
