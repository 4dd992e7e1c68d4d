"""The dispatch backend: GEMMs by the weights that they read."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

import torch
from torch import nn

from fp8debug.hooks.backends.base import FoundLayer, Observer
from fp8debug.hooks.backends.dispatch.attention import AttentionWatch
from fp8debug.hooks.backends.dispatch.gemms import Gemm
from fp8debug.hooks.backends.dispatch.links import Links, gradient_of
from fp8debug.hooks.backends.dispatch.mode import GemmMode, is_readable
from fp8debug.hooks.backends.dispatch.naming import Names
from fp8debug.hooks.backends.dispatch.provenance import Source, Weights
from fp8debug.hooks.backends.dispatch.reporting import Reporter, operands_of
from fp8debug.hooks.backends.dispatch.scopes import Frame, Scopes
from fp8debug.hooks.backends.finding import PARAMETER
from fp8debug.hooks.backends.kinds import kind_of
from fp8debug.hooks.clock import in_backward
from fp8debug.hooks.transforms import outside_transforms

_PATIENCE_STEPS = 3


class DispatchBackend:
    """Names every GEMM that runs while a module of the model is called, and what of a backward pass belongs to it."""

    def __init__(self) -> None:
        self._weights = Weights()
        self._links = Links()
        self._observer: Observer | None = None
        self._mode = GemmMode(self._weights, self._on_gemm, self._on_aside, self._fail)
        self._scopes = Scopes(self._mode, self._begins, self._fail)
        self._scopes.on_call = self._on_call
        self._scopes.on_return = self._on_return
        self._names = Names(self._weights, lambda: self._scopes.frames)
        self._report = Reporter(self._links)
        self._attention: AttentionWatch | None = None
        self._called: set[int] = set()
        """Modules called in this step, by id."""
        self._in_gemms: set[str] = set()
        self._idle: Counter[str] = Counter()
        """Steps in which a weight was in no GEMM although its owner was called."""
        self._taken: dict[str, bool] = {}
        self._taken_at = -1
        self._lock = threading.RLock()

    def attach(self, model: nn.Module, layers: Sequence[FoundLayer], observer: Observer) -> None:
        """Look for the GEMMs of `layers` from now on."""
        self._observer = observer
        self._report.observer = observer
        self._report.watch(model)
        for layer in layers:
            self._names.add(layer)
            self._scopes.watch(layer.module)
        self._scopes.watch(model)
        self._scopes.watch_backward()

    def attach_attention(self, model: nn.Module, root: str, observer: Observer) -> None:
        """Look for attention's GEMMs in `model` too.

        Args:
            root: name of the model among several; that of its class where it is alone.
        """
        self.attach(model, (), observer)
        if self._attention is None:
            self._attention = AttentionWatch(observer, self._report, self._innermost)
            self._mode.add(self._attention.looks())
        self._attention.watch(model, "" if root == type(model).__name__ else f"{root}.", root)
        for module in model.modules():
            if kind_of(module) is None:
                self._scopes.watch(module)

    def detach(self) -> None:
        """Look for nothing more."""
        self._scopes.close()
        self._names.clear()

    def _fail(self, error: Exception) -> None:
        if self._observer is not None:
            self._observer.fail(error)

    def _begins(self, module: nn.Module | None) -> bool:
        """Whether a call of the module, or a backward pass, has anything to show; if so, weights are looked up anew."""
        observer = self._observer
        if observer is None or not observer.active:
            return False
        if module is None:
            return len(self._links) > 0 or self._attention is not None
        if self._taken_at != observer.clock.upcoming:
            self._end_step(observer.clock.upcoming)
        if not (observer.serves or observer.is_sampled(observer.clock.upcoming) or self._is_training(module)):
            return False
        if self._attention is None and not any(self._takes(layer) for layer in self._names.layers):
            return False
        self._names.look_up()
        return True

    def _is_training(self, module: nn.Module) -> bool:
        return module.training or any(layer.module.training for layer in self._names.layers)

    def _end_step(self, upcoming: int) -> None:
        """Begin a step: ask anew what is taken, and leave alone what turned out to be no weight."""
        self._taken.clear()
        self._taken_at = upcoming
        if self._attention is not None:
            self._attention.end_step(upcoming)
        for layer in [*self._names.layers]:
            if layer.kind == PARAMETER and layer.name not in self._in_gemms and id(layer.module) in self._called:
                self._idle[layer.name] += 1
                if self._idle[layer.name] == _PATIENCE_STEPS:
                    self._names.layers.remove(layer)
                    self._note_idle(layer)
        self._called.clear()

    def _note_idle(self, layer: FoundLayer) -> None:
        assert self._observer is not None
        if self._observer.takes(layer.name):
            message = f"in no GEMM of its module's first {_PATIENCE_STEPS} steps: no longer looked for"
            self._observer.note("assumption", message, layer.name)

    def _on_call(self, module: nn.Module) -> None:
        if id(module) not in self._called:
            self._called.add(id(module))
            assert self._observer is not None
            for layer in self._names.owned.get(id(module), ()):
                if layer.kind == PARAMETER:
                    self._observer.ran(layer.name)

    def _on_return(self, module: nn.Module) -> None:
        if self._observer is None or not self._observer.active or id(module) not in self._names.owned:
            return
        try:
            with outside_transforms():
                self._report.end_call(module)
        except Exception as error:  # ours, never the training's
            self._fail(error)

    def _innermost(self) -> Frame | None:
        frames = self._scopes.frames
        return frames[-1] if frames else None

    def _takes(self, layer: FoundLayer) -> bool:
        """Whether the layer is to be recorded; asked once a step."""
        observer = self._observer
        assert observer is not None
        if layer.name not in self._taken:
            self._taken[layer.name] = observer.takes(layer.name)
        return self._taken[layer.name]

    def _on_gemm(self, gemm: Gemm) -> None:
        observer = self._observer
        if observer is None or not observer.active:
            return
        with self._lock:
            sources = self._names.source(gemm.a), self._names.source(gemm.b)
            if not self._see_backward(gemm, sources) and self._may_be_forward():
                self._see_forward(gemm, sources)

    def _on_aside(self, source: Source) -> None:
        layer = self._names.owner(source.layers)
        if layer is not None and self._takes(layer) and self._observer is not None and self._observer.active:
            message = "its GEMM runs outside autograd, as in a compiled graph: not seen there"
            self._report.note_once("not_captured", layer.name, message)

    def _see_backward(self, gemm: Gemm, sources: Sequence[Source | None]) -> bool:
        node = torch._C._current_autograd_node()
        if node is None or self._scopes.recomputes:
            return False
        for link in self._links.find(node._sequence_nr()):
            is_w = [
                link.is_w(operand) or (source is not None and any(link.layer == known.name for known in source.layers))
                for operand, source in zip((gemm.a, gemm.b), sources, strict=True)
            ]
            gradient = gradient_of(link, gemm, is_w)
            if gradient is not None:
                self._report.backward(link, gradient)
                return True
        return False

    def _may_be_forward(self) -> bool:
        """Within a backward pass only what is recomputed is."""
        if not in_backward() or self._scopes.recomputes:
            return True
        return torch.is_grad_enabled() and not self._scopes.n_creating_graph

    def _see_forward(self, gemm: Gemm, sources: Sequence[Source | None]) -> None:
        layer, weight_is_b, source = self._names.named(gemm, sources)
        if layer is None:
            if self._attention is not None and source is None and is_readable(gemm.a, gemm.b):
                self._attention.see_gemm(gemm)
            return
        self._in_gemms.add(layer.name)
        if not self._takes(layer):
            return
        if not is_readable(gemm.a, gemm.b):
            kinds = " and ".join(dict.fromkeys(type(t).__name__ for t in (gemm.a, gemm.b)))
            self._report.note_once("not_captured", layer.name, f"its GEMM is of {kinds}, which are not looked into")
            return
        frames = self._scopes.frames
        asked = frames[-1].asked.get(gemm.a.device.type) if frames else None
        self._report.forward(layer, operands_of(gemm, weight_is_b), gemm, source, asked)
