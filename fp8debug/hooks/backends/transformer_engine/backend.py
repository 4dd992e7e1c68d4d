"""Capture of Transformer Engine's modules: through its debug API on sampled steps, by hooks on the others.

The debug API shows the operands of every GEMM, in high precision and quantised, and changes how a module computes; so
it is on in sampled steps alone. In the others hooks see what goes in and out of a module, and its FP8 state.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from fp8debug.hooks.backends.base import FoundLayer, Observer
from fp8debug.hooks.backends.placement import WeightPlacements, megatron_placements, placement_of
from fp8debug.hooks.backends.transformer_engine import inspection
from fp8debug.hooks.backends.transformer_engine.feature import LINK
from fp8debug.hooks.backends.transformer_engine.gemms import TENSORS, TEGemm, te_gemms, te_kind
from fp8debug.hooks.backends.transformer_engine.module_hooks import AfterForward, BeforeForward, OnGradient
from fp8debug.hooks.backends.transformer_engine.operands import (
    dtype_asked_of,
    rows_of_experts,
    state_of,
    visible_operands,
)
from fp8debug.hooks.backends.transformer_engine.passes import Pass, Watched
from fp8debug.hooks.backends.transformer_engine.payloads import UnknownLayout, is_quantized, payload_of
from fp8debug.hooks.backends.transformer_engine.wording import recipe_text
from fp8debug.hooks.observed import LOCAL, Observed, Payload, Placement
from fp8debug.hooks.transforms import has_data

_LONGEST_SLEEP = 64
"""Steps after which Transformer Engine asks again at the latest."""
_MEGATRON_KINDS = {"column": "ColumnParallelLinear", "row": "RowParallelLinear"}


class TransformerEngineBackend:
    """Captures Transformer Engine's modules of the known kinds."""

    def __init__(self) -> None:
        self._observer: Observer | None = None
        self._watched: dict[int, Watched] = {}
        self._handles: dict[int, list[RemovableHandle]] = {}
        self._names: dict[str, tuple[Watched, TEGemm]] = {}
        self._joined: set[str] = set()
        self._weights: dict[int, WeightPlacements] = {}
        self._modules: weakref.WeakValueDictionary[int, nn.Module] = weakref.WeakValueDictionary()
        self._microbatch: tuple[int, int] | None = None
        self._before: tuple[int, int] | None = None
        self._said: set[tuple[str, ...]] = set()
        self._problem: str | None = None
        self._next: tuple[int, int] = (-1, 0)

    # -- life ---------------------------------------------------------------------------------------------------

    def attach(self, model: nn.Module, layers: Sequence[FoundLayer], observer: Observer) -> None:
        """Watch the modules of these layers."""
        inspection.start_late()
        self._observer, self._problem = observer, inspection.problem()
        LINK.receiver = self
        placements = WeightPlacements(model)
        for layer in layers:
            module, key = layer.module, id(layer.module)
            kind = te_kind(module)
            if kind is None:
                continue
            if self._modules.get(key) is not module:  # new, or at the address of one that is gone
                self._modules[key] = module
                watched = self._watched[key] = Watched(module, kind)
                self._weights[key] = placements
                self._handles[key] = [
                    module.register_forward_pre_hook(BeforeForward(self, watched), prepend=True, with_kwargs=True),
                    module.register_forward_hook(AfterForward(self, watched), prepend=True, with_kwargs=True),
                ]
            gemm = next(g for g in te_gemms(module, kind) if g.parameter == layer.parameter)
            self._watched[key].layers[gemm] = layer.name
        if self._problem is not None:
            self._say_once("not_captured", f"{self._problem}: only what goes in and out of modules is seen")

    def detach(self) -> None:
        """Remove our hooks and fall silent. `nvdlfw_inspect` runs on: a module may be between forward and backward."""
        if LINK.receiver is self:
            LINK.receiver = None
        for handles in self._handles.values():
            for handle in handles:
                handle.remove()
        for kept in (self._handles, self._watched, self._names, self._weights, self._modules):
            kept.clear()

    def fail(self, error: Exception) -> None:
        """Disable fp8debug."""
        if self._observer is not None:
            self._observer.fail(error)

    @property
    def observer(self) -> Observer | None:
        """Where to report to; None when there is nothing more to report."""
        return self._observer if self._observer is not None and self._observer.active else None

    # -- what hooks see -----------------------------------------------------------------------------------------

    def before_forward(self, observer: Observer, module: nn.Module, watched: Watched) -> None:
        """Fix the key of this pass, and have Transformer Engine ask whether it is wanted."""
        moment = observer.clock.forward(watched.key, module.training)
        here = moment.step, moment.microbatch
        if moment.pass_ == "forward" and here != self._microbatch:
            self._before, self._microbatch = self._microbatch, here
        sampled = (moment.pass_ != "eval" or observer.serves) and observer.is_sampled(moment.step)
        watched.begin(moment, sampled=sampled, before=self._before)
        if self._problem is not None:
            return
        self._bind(module, watched)
        if inspection.is_own() and inspection.iteration() != moment.step:
            inspection.begin_iteration(moment.step)
        if sampled:
            _wake(module)

    def after_forward(
        self, observer: Observer, module: nn.Module, watched: Watched, inputs: Mapping[str, Any], output: Any
    ) -> None:
        """Report what the debug API has not shown, and watch for the gradient."""
        y = next(iter(output), None) if isinstance(output, (tuple, list)) else output
        if not isinstance(y, torch.Tensor) or not has_data(y):
            return
        if watched.forward is None:  # attached within this very call
            self.before_forward(observer, module, watched)
        taken = watched.forward
        assert taken is not None
        splits = rows_of_experts(watched, inputs.get("m_splits"))
        if not taken.debugged:
            visible = visible_operands(watched, {"x": inputs.get("x"), "y": y}, splits)
            for gemm in tuple(watched.layers):
                for tensor in ("x", "y"):
                    self._take_visible(observer, module, watched, gemm, tensor, taken, visible.get((gemm, tensor)))
                self._take_weight(observer, module, watched, gemm, taken)
        if y.requires_grad and taken.moment.pass_ != "eval":
            y.register_hook(OnGradient(self, module, watched, taken, splits))

    def on_gradient(
        self,
        observer: Observer,
        module: nn.Module,
        watched: Watched,
        taken: Pass,
        splits: Sequence[int] | None,
        gradient: torch.Tensor,
    ) -> None:
        """The backward of a pass begins: its key holds for what the debug API shows from now on."""
        observer.clock.backward()
        watched.backward = taken
        if taken.debugged:
            self._bind(module, watched)  # of two modules of one name the other may have run since
            return
        visible = visible_operands(watched, {"dy": gradient}, splits)
        for gemm in tuple(watched.layers):
            self._take_visible(observer, module, watched, gemm, "dy", taken, visible.get((gemm, "dy")))

    def leave(self, watched: Watched) -> None:
        """A module is captured in a CUDA graph: take nothing, and have the debug API told that nothing is wanted."""
        watched.forward = None
        message = "captured in a CUDA graph, whose replays cannot be seen"
        for layer in watched.layers.values():
            self._say_once("not_captured", message, layer)

    def _take_visible(
        self,
        observer: Observer,
        module: nn.Module,
        watched: Watched,
        gemm: TEGemm,
        tensor: str,
        taken: Pass,
        value: torch.Tensor | None,
    ) -> None:
        layer = watched.layers[gemm]
        if tensor not in observer.tensors or not observer.takes(layer) or (layer, tensor) in taken.seen:
            return
        taken.seen.add((layer, tensor))
        if isinstance(value, torch.Tensor) and not is_quantized(value):
            self._report(observer, module, watched, gemm, tensor, taken, value)
        elif tensor != "y":
            self._miss(observer, module, watched, gemm, tensor, taken)

    def _take_weight(self, observer: Observer, module: nn.Module, watched: Watched, gemm: TEGemm, taken: Pass) -> None:
        layer, weight = watched.layers[gemm], module._parameters.get(gemm.parameter)
        if "w" not in observer.tensors or not observer.takes(layer) or not observer.wants_weight(layer, taken.moment):
            return
        if weight is not None and not is_quantized(weight):
            self._report(observer, module, watched, gemm, "w", taken, weight)
        elif weight is not None and taken.sampled:
            self._report(observer, module, watched, gemm, "w", taken, None, weight, getattr(weight, "_quantizer", None))
        else:
            self._miss(observer, module, watched, gemm, "w", taken)

    def _miss(
        self, observer: Observer, module: nn.Module, watched: Watched, gemm: TEGemm, tensor: str, taken: Pass
    ) -> None:
        """A tensor that only the debug API could show."""
        moment = taken.key(tensor)
        if moment.pass_ in ("eval", "recompute"):
            return
        layer, scales = watched.layers[gemm], watched.scales(state_of(module), gemm, tensor, taken)
        collected = scales.collected_amax if scales is not None and tensor != "dy" else None
        observer.miss(layer, tensor, moment, scales or (), collected)
        if taken.sampled:
            self._say_once("not_captured", f"it exists only inside {watched.kind}: not recorded", layer, tensor)
        elif collected is None:
            message = (
                f"between sampled steps nothing of it is seen, inside {watched.kind}: simulated histories have gaps"
            )
            self._say_once("history_absent", message, layer, tensor)

    # -- what the debug API shows -------------------------------------------------------------------------------

    def when(self, layer_name: str, tensor_name: str) -> tuple[bool, int | None]:
        """Whether the tensor is wanted in the forward under way; else, in how many steps to ask again."""
        observer, found = self.observer, self._names.get(layer_name)
        if observer is None or found is None:
            return False, None
        watched, gemm = found
        layer, taken = watched.layers.get(gemm), watched.forward
        if layer is None or taken is None or TENSORS.get(tensor_name) not in observer.tensors:
            return False, None
        if not observer.takes(layer):
            return False, None
        if not taken.sampled:
            return False, self._sleep(observer, taken.moment.step)
        taken.debugged = True
        return True, 1

    def inspect(self, layer_name: str, tensor_name: str, tensor: Any, quantized: Any, quantizer: Any) -> None:
        """Report an operand, or a result, of a GEMM."""
        observer, found = self.observer, self._names.get(layer_name)
        if observer is None or found is None:
            return
        watched, gemm = found
        layer, word, module = watched.layers.get(gemm), TENSORS.get(tensor_name), self._modules.get(watched.key)
        taken = watched.backward if word in ("dy", "dx", "dw") else watched.forward
        if layer is None or word is None or module is None or taken is None or not taken.debugged:
            return
        if word not in observer.tensors or not observer.takes(layer) or (layer, word) in taken.seen:
            return
        taken.seen.add((layer, word))
        if word == "w" and not observer.wants_weight(layer, taken.moment):
            return
        self._report(observer, module, watched, gemm, word, taken, tensor, quantized, quantizer)

    def _report(
        self,
        observer: Observer,
        module: nn.Module,
        watched: Watched,
        gemm: TEGemm,
        tensor: str,
        taken: Pass,
        value: torch.Tensor | None,
        quantized: Any = None,
        quantizer: Any = None,
    ) -> None:
        layer, meta = watched.layers[gemm], state_of(module)
        payload = self._payload(meta, layer, tensor, quantized, quantizer)
        if value is None and payload is None:
            return
        shown = value if value is not None else payload.codes  # type: ignore[union-attr]
        activation = getattr(module, "activation_dtype", None)
        gemm_dtype = shown.dtype if value is not None or activation is None else activation
        local, placement = self._place(module, watched, gemm, tensor, taken, shown)
        observer.observe(
            Observed(
                layer,
                tensor,
                local,
                gemm_dtype,
                taken.key(tensor),
                framework=watched.scales(meta, gemm, tensor, taken) or (),
                precision_asked=dtype_asked_of(module, meta, tensor) if taken.debugged or payload is not None else None,
                placement=placement,
                payload=payload,
            )
        )

    def _payload(self, meta: Any, layer: str, tensor: str, quantized: Any, quantizer: Any) -> Payload | None:
        if not is_quantized(quantized):
            return None
        recipe = meta.get("recipe") if isinstance(meta, Mapping) else None
        try:
            return payload_of(quantized, recipe_text(recipe, quantizer))
        except UnknownLayout as error:
            self._say_once("not_captured", f"what its GEMM read is not recorded: {error}", layer, tensor)
            return None

    def _place(
        self, module: nn.Module, watched: Watched, gemm: TEGemm, tensor: str, taken: Pass, value: torch.Tensor
    ) -> tuple[torch.Tensor, Placement]:
        mode = getattr(module, "parallel_mode", None)
        if watched.kind == "LayerNormMLP" and getattr(module, "set_parallel_mode", False):
            mode = "row" if gemm.place else "column"
        inner = LOCAL
        if mode in _MEGATRON_KINDS and int(getattr(module, "tp_size", 1)) > 1:
            inner = megatron_placements(module, _MEGATRON_KINDS[mode], value.dim()).get(tensor, LOCAL)
        local, placement = placement_of(value, inner)
        weight = module._parameters.get(gemm.parameter)
        if tensor == "w" and weight is not None:
            placement = self._weights[watched.key].of(module, gemm.parameter, weight, placement, taken.moment.step)
        return local, placement

    # -- small change -------------------------------------------------------------------------------------------

    def _bind(self, module: nn.Module, watched: Watched) -> None:
        """Let the module's present name lead to it: names may be given late, and twice."""
        name = getattr(module, "name", None)
        for gemm in watched.layers if isinstance(name, str) else ():
            te_name = gemm.name(str(name))
            self._names[te_name] = (watched, gemm)
            if te_name not in self._joined:
                self._joined.add(te_name)
                try:
                    inspection.join(te_name)
                except ValueError as error:
                    self._say_once("not_captured", f"not added to your nvdlfw-inspect config: {error}", te_name)

    def _sleep(self, observer: Observer, step: int) -> int:
        """Steps until the next sampled one, as the schedule is now."""
        known, distance = self._next
        if known != step:
            distance = next((d for d in range(1, _LONGEST_SLEEP) if observer.is_sampled(step + d)), _LONGEST_SLEEP)
            self._next = step, distance
        return distance

    def _say_once(self, kind: str, message: str, *where: str) -> None:
        if (kind, message, *where) not in self._said and self._observer is not None:
            self._said.add((kind, message, *where))
            self._observer.note(kind, message, *where)


def _wake(module: nn.Module) -> None:
    """Have the module ask in this pass, whatever it was told before: what is sampled may have changed since."""
    for name, value in (("next_iter_when_debug_should_be_run", inspection.iteration()), ("debug_last_iteration", None)):
        if name in module.__dict__:
            module.__dict__[name] = value
