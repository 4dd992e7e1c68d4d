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
from fp8debug.hooks.backends.placement import WeightPlacements
from fp8debug.hooks.backends.transformer_engine import inspection
from fp8debug.hooks.backends.transformer_engine.feature import LINK
from fp8debug.hooks.backends.transformer_engine.gemms import TENSORS, TEGemm, te_gemms, te_kind
from fp8debug.hooks.backends.transformer_engine.module_hooks import AfterForward, BeforeForward, OnGradient
from fp8debug.hooks.backends.transformer_engine.operands import rows_of_experts, visible_operands
from fp8debug.hooks.backends.transformer_engine.passes import Pass, Watched
from fp8debug.hooks.backends.transformer_engine.reporting import Operand, Reporter
from fp8debug.hooks.transforms import has_data

_LONGEST_SLEEP = 64
"""Steps after which Transformer Engine asks again at the latest."""


class TransformerEngineBackend:
    """Captures Transformer Engine's modules of the known kinds."""

    def __init__(self) -> None:
        self._observer: Observer | None = None
        self._reporter = Reporter()
        self._watched: dict[int, Watched] = {}
        self._handles: dict[int, list[RemovableHandle]] = {}
        self._names: dict[str, tuple[Watched, TEGemm]] = {}
        self._joined: set[str] = set()
        self._modules: weakref.WeakValueDictionary[int, nn.Module] = weakref.WeakValueDictionary()
        self._microbatch: tuple[int, int] | None = None
        self._before: tuple[int, int] | None = None
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
                watched = self._watched[key] = Watched(module, kind, placements)
                self._handles[key] = [
                    module.register_forward_pre_hook(BeforeForward(self, watched), prepend=True, with_kwargs=True),
                    module.register_forward_hook(AfterForward(self, watched), prepend=True, with_kwargs=True),
                ]
            gemm = next(g for g in te_gemms(module, kind) if g.parameter == layer.parameter)
            self._watched[key].layers[gemm] = layer.name
        if self._problem is not None:
            message = f"{self._problem}: only what goes in and out of modules is seen"
            self._reporter.note_once(observer, "not_captured", message)

    def detach(self) -> None:
        """Remove our hooks and fall silent. `nvdlfw_inspect` runs on: a module may be between forward and backward."""
        if LINK.receiver is self:
            LINK.receiver = None
        for handles in self._handles.values():
            for handle in handles:
                handle.remove()
        for kept in (self._handles, self._watched, self._names, self._modules):
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
        self._bind(observer, module, watched)
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
                    operand = Operand(module, watched, gemm, tensor, taken)
                    self._reporter.take_visible(observer, operand, visible.get((gemm, tensor)))
                self._reporter.take_weight(observer, Operand(module, watched, gemm, "w", taken))
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
            self._bind(observer, module, watched)  # of two modules of one name the other may have run since
            return
        visible = visible_operands(watched, {"dy": gradient}, splits)
        for gemm in tuple(watched.layers):
            operand = Operand(module, watched, gemm, "dy", taken)
            self._reporter.take_visible(observer, operand, visible.get((gemm, "dy")))

    def leave(self, observer: Observer, watched: Watched) -> None:
        """A module is captured in a CUDA graph: take nothing, and have the debug API told that nothing is wanted."""
        watched.forward = None
        message = "captured in a CUDA graph, whose replays cannot be seen"
        for layer in watched.layers.values():
            self._reporter.note_once(observer, "not_captured", message, layer)

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
        word, module = TENSORS.get(tensor_name), self._modules.get(watched.key)
        taken = watched.backward if word in ("dy", "dx", "dw") else watched.forward
        if gemm not in watched.layers or word is None or module is None or taken is None or not taken.debugged:
            return
        self._reporter.take_shown(observer, Operand(module, watched, gemm, word, taken), tensor, quantized, quantizer)

    # -- small change -------------------------------------------------------------------------------------------

    def _bind(self, observer: Observer, module: nn.Module, watched: Watched) -> None:
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
                    message = f"not added to your nvdlfw-inspect config: {error}"
                    self._reporter.note_once(observer, "not_captured", message, te_name)

    def _sleep(self, observer: Observer, step: int) -> int:
        """Steps until the next sampled one, as the schedule is now."""
        known, distance = self._next
        if known != step:
            distance = next((d for d in range(1, _LONGEST_SLEEP) if observer.is_sampled(step + d)), _LONGEST_SLEEP)
            self._next = step, distance
        return distance


def _wake(module: nn.Module) -> None:
    """Have the module ask in this pass, whatever it was told before: what is sampled may have changed since."""
    for name, value in (("next_iter_when_debug_should_be_run", inspection.iteration()), ("debug_last_iteration", None)):
        if name in module.__dict__:
            module.__dict__[name] = value
