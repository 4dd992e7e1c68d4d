"""The GEMMs inside attention: QK^T and PV, which no weight gives away.

In attention written out they are batched GEMMs around a softmax; in a fused kernel its arguments are seen, and what
stays inside is said.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload

from fp8debug.hooks.backends.base import FoundLayer, Observer
from fp8debug.hooks.backends.dispatch.gemms import Gemm, overloads
from fp8debug.hooks.backends.dispatch.links import Operands, Part
from fp8debug.hooks.backends.dispatch.provenance import Weights
from fp8debug.hooks.backends.dispatch.reporting import Reporter, forward_number, operands_of
from fp8debug.hooks.backends.dispatch.scopes import Frame
from fp8debug.hooks.backends.dispatch.telling import Teller
from fp8debug.hooks.selection import canonical_name

ATTENTION = "attention"
"""Kind of these layers."""
_FUSED = (
    "scaled_dot_product_attention",  # in one piece in inference mode
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)
_KEEPING = ("_to_copy", "clone", "_reshape_copy", "mul", "div", "native_dropout", "where", "masked_fill")
_INSIDE = "a fused kernel computes QK^T and PV: the softmax's output and the gradient of the scores stay inside"
_Look = Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None]


class AttentionWatch:
    """Recognises attention in the modules that it is told of."""

    def __init__(self, observer: Observer, report: Reporter, innermost: Callable[[], Frame | None]) -> None:
        self._observer = observer
        self._report = report
        self._innermost = innermost
        self._names: weakref.WeakKeyDictionary[nn.Module, tuple[str, str]] = weakref.WeakKeyDictionary()
        self._with_softmax: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._probabilities = Weights()
        self._found: dict[str, FoundLayer] = {}
        self._fused: dict[int, tuple[Part, torch.dtype]] = {}
        """PV of a fused forward, by the number of its autograd node."""

    def watch(self, model: nn.Module, prefix: str, root: str) -> None:
        """Know the names of the model's modules."""
        for raw, module in model.named_modules():
            name = prefix + (canonical_name(raw) or type(module).__name__)
            self._names[module] = name, root
            if "attention" in type(module).__name__.lower() or "attn" in f"{name}{type(module).__name__}".lower():
                self._with_softmax.add(module)

    def looks(self) -> dict[OpOverload, _Look]:
        """Operations to look at beside GEMMs."""
        looks: dict[OpOverload, _Look] = {}
        for name in ("_softmax", "_safe_softmax"):
            looks |= dict.fromkeys(overloads(name), self._see_softmax)
        for name in _KEEPING:
            looks |= dict.fromkeys(overloads(name), self._see_copy)
        for name in _FUSED:
            looks |= dict.fromkeys(overloads(name), self._see_fused)
            looks |= dict.fromkeys(overloads(f"{name}_backward"), self._see_fused_backward)
        return looks

    def see_gemm(self, gemm: Gemm) -> None:
        """A forward GEMM without a weight: report it if it is attention's."""
        frame = self._innermost()
        if frame is None or not gemm.is_batched or gemm.a.shape[-1] < 2 or frame.module not in self._names:
            return
        a_is_p, b_is_p = (self._probabilities.source(operand) is not None for operand in (gemm.a, gemm.b))
        if a_is_p or b_is_p:
            operands = operands_of(gemm, weight_is_b=a_is_p)
            self._tell("pv", frame, operands)
        elif frame.module in self._with_softmax:
            self._tell("qk", frame, operands_of(gemm, weight_is_b=True))

    def _tell(self, which: str, frame: Frame, operands: Operands) -> None:
        """Report one of the two GEMMs, and of its second operand what goes by a name of its own."""
        layer = self._layer(frame.module, f".{which}", operands)
        asked = frame.asked.get(operands.x.device.type)
        part = self._report.unweighted(layer, operands, asked, takes=self._takes(layer))
        self._tell_cached(which, frame.module, operands.w if which == "qk" else operands.w.mT, part)

    def _tell_cached(self, which: str, module: nn.Module, value: Tensor, part: Part) -> None:
        tensor = "key" if which == "qk" else "value"
        if tensor in self._observer.tensors:
            layer = self._layer(module, "", None)
            if self._observer.takes(layer.name):
                Teller(self._observer, part._replace(layer=layer.name), value.dtype)(tensor, value)

    def _takes(self, layer: FoundLayer) -> bool:
        return self._observer.attention and self._observer.takes(layer.name)

    def _layer(self, module: nn.Module, suffix: str, operands: Operands | None) -> FoundLayer:
        base, root = self._names[module]
        name = base + suffix
        if name not in self._found:
            n, k = (0, 0) if operands is None else operands.w.shape[-2:]
            layer = FoundLayer(name, name, root, module, k, n, "dispatch", ATTENTION, "")
            self._found[name] = layer
            if self._observer.attention or not suffix:
                self._observer.found(layer)
        return self._found[name]

    def _see_softmax(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        frame = self._innermost()
        if frame is not None and result.dim() > 2 and frame.module in self._names:
            self._with_softmax.add(frame.module)
            self._probabilities.add(result, ())

    def _see_copy(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        made = result[0] if isinstance(result, tuple) else result
        for original in args[:3]:
            if isinstance(original, Tensor) and original.shape == made.shape:
                self._probabilities.follow(original, made)

    def _see_fused(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        frame = self._innermost()
        if frame is None or frame.module not in self._names:
            return
        q, k, v = args[:3]
        y = result[0] if isinstance(result, tuple) else result
        asked = frame.asked.get(q.device.type) or q.dtype
        parts = {}
        for which, x, w in (("qk", q, k), ("pv", None, v.mT)):
            layer = self._layer(frame.module, f".{which}", Operands(q, w, y))
            takes = self._takes(layer)
            part = parts[which] = Part(layer.name, self._observer.clock.forward(layer.name, frame.module.training))
            tell = Teller(self._observer, part, asked)
            if takes and x is not None and "x" in self._observer.tensors:
                tell("x", x)
            if takes and "w" in self._observer.tensors:
                tell("w", w)
            if takes and which == "pv" and "y" in self._observer.tensors:
                tell("y", y, gemm_dtype=q.dtype)
            if takes and which == "pv":
                self._report.note_once("not_captured", layer.name, _INSIDE)
            self._tell_cached(which, frame.module, w if which == "qk" else v, part)
        if self._takes(layer) and parts["pv"].moment.pass_ != "eval":
            self._fused[forward_number()] = parts["pv"], asked

    def _see_fused_backward(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        node = torch._C._current_autograd_node()
        known = None if node is None else self._fused.get(node._sequence_nr())
        if known is None:
            return
        self._observer.clock.backward()
        part, asked = known
        if "dy" in self._observer.tensors:
            Teller(self._observer, part._replace(moment=part.moment._replace(pass_="backward")), asked)("dy", args[0])

    def end_step(self, step: int) -> None:
        """Forget forwards of earlier steps than the one before `step`."""
        self._fused = {n: kept for n, kept in self._fused.items() if kept[0].moment.step >= step - 1}
