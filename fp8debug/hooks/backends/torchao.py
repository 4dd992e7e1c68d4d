"""What torchao's Float8Linear really multiplies: the FP8 codes, the scale and the GEMM role of its tensors.

The module's hooks see operands before they are quantised; the quantised ones exist only between that and the GEMM. So
on sampled steps a dispatch mode watches each layer's own forward, and its own node of the backward pass, and nothing
else: no other code of the training runs inside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from fp8debug.hooks.backends.base import FoundLayer, Observer
from fp8debug.hooks.backends.module_hook import ModuleHook
from fp8debug.hooks.backends.modules import ModuleBackend
from fp8debug.hooks.dtypes import format_of
from fp8debug.hooks.observed import Observed, Payload
from fp8debug.recipes import CurrentScaling, RowWise
from fp8debug.replay import Moment

_ROLES = {"input": "x", "weight": "w", "grad_output": "dy"}
_GEMMS = ("aten::mm", "aten::addmm")
_NODE = "matmul_with_hp_or_float8_argsBackward"
"""Node of the backward pass in which the layer quantises its gradient and computes both GEMMs."""


class TorchaoBackend:
    """Module hooks whose records carry payloads."""

    def __init__(self) -> None:
        self._modules = ModuleBackend()
        self._handles: dict[str, tuple[RemovableHandle, RemovableHandle]] = {}

    def attach(self, model: nn.Module, layers: Sequence[FoundLayer], observer: Observer) -> None:
        """Hook the layers, with an observer of our own between them and `observer`."""
        watched = WithPayloads(observer)
        self._modules.attach(model, layers, watched)
        for layer in layers:
            self._release(layer.name)
            watched.power_of_two[layer.name] = _rounds_scales(layer.module)
            hooks = PayloadHooks(watched, layer.name)
            self._handles[layer.name] = (
                layer.module.register_forward_pre_hook(hooks.before),
                layer.module.register_forward_hook(hooks.after, always_call=True),
            )

    def detach(self) -> None:
        """Remove our hooks and no others."""
        self._modules.detach()
        for name in tuple(self._handles):
            self._release(name)

    def _release(self, name: str) -> None:
        for handle in self._handles.pop(name, ()):
            handle.remove()


class WithPayloads:
    """Between hooks and the session's observer: everything goes there, operands with the payload that was seen."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.power_of_two: dict[str, bool] = {}
        """Layer → whether it rounds its scales down to powers of two."""
        self.modes: dict[str, PayloadMode] = {}
        """Layer → what watches its forward while that runs, if its step is sampled."""
        self.latest: dict[str, Moment] = {}
        """Layer → the moment of its latest x."""
        self.awaited: set[tuple[str, Moment]] = set()
        """Layer and key of gradients whose node is watched."""
        self.waiting: dict[tuple[str, Moment], Observed] = {}
        """Gradients that are about to be quantised; each for as long as its node runs."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.observer, name)

    def observe(self, seen: Observed) -> None:
        """Pass it on, or keep it until its payload is there."""
        if seen.tensor == "x":
            self.latest[seen.layer] = seen.moment
        if seen.tensor == "dy" and (seen.layer, seen.moment) in self.awaited:
            self.waiting[seen.layer, seen.moment] = seen
        else:
            self.observer.observe(self.completed(seen, self.modes.get(seen.layer)))

    def completed(self, seen: Observed, mode: PayloadMode | None) -> Observed:
        """`seen` with the payload that `mode` has seen of it, if any."""
        quantised = None if mode is None else mode.seen.get(seen.tensor)
        if quantised is None:
            return seen
        payload = payload_of(quantised, seen.tensor, seen.value.shape, self.power_of_two[seen.layer])
        return seen if payload is None else seen._replace(payload=payload)


class PayloadHooks(ModuleHook):
    """Turns a mode on around the GEMMs of one layer."""

    def __init__(self, watched: WithPayloads, layer: str) -> None:
        self._watched = watched
        self._layer = layer

    def before(self, module: nn.Module, args: Any) -> None:
        """Forward pre-hook: watch this forward if its step is sampled."""
        observer = self._watched.observer
        if torch.compiler.is_compiling() or not observer.active:
            return
        if module.training and observer.is_sampled(observer.clock.upcoming):
            mode = self._watched.modes[self._layer] = PayloadMode()
            mode.__enter__()  # type: ignore[no-untyped-call]

    def after(self, module: nn.Module, args: Any, output: Any) -> None:
        """Forward hook, called after a failed forward too: watch no more; have the node of the gradient watched."""
        watched = self._watched
        mode = watched.modes.pop(self._layer, None)
        if mode is None:
            return
        mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        moment = watched.latest.get(self._layer)
        if moment is not None and isinstance(output, torch.Tensor) and "dy" in watched.observer.tensors:
            node = _node_of(output.grad_fn)
            if node is not None:
                NodeHooks(watched, (self._layer, moment._replace(pass_="backward"))).attach(node)


class NodeHooks:
    """Turns the mode on around one node of the backward pass."""

    def __init__(self, watched: WithPayloads, key: tuple[str, Moment]) -> None:
        self._watched = watched
        self._key = key
        self._mode = PayloadMode()
        watched.awaited.add(key)

    def attach(self, node: Any) -> None:
        """Both hooks live as long as the node."""
        node.register_prehook(self.before)
        node.register_hook(self.after)

    def before(self, gradients: Any) -> None:
        """The gradient is there and about to be quantised."""
        self._mode.__enter__()  # type: ignore[no-untyped-call]

    def after(self, *results: Any) -> None:
        """Both GEMMs are done: report the gradient with its payload."""
        self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        watched = self._watched
        watched.awaited.discard(self._key)
        seen = watched.waiting.pop(self._key, None)
        if seen is None or not watched.observer.active:
            return
        try:
            watched.observer.observe(watched.completed(seen, self._mode))
        except Exception as error:  # ours, never the training's
            watched.observer.fail(error)
        finally:
            self._mode.seen.clear()


class PayloadMode(TorchDispatchMode):
    """Notes the quantised operands of the GEMMs that run inside it; passes everything through unchanged."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: dict[str, Any] = {}
        """x | w | dy → the first tensor of that role."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name() in _GEMMS:
            for operand in args:
                role = getattr(getattr(operand, "_gemm_input_role", None), "value", None)
                if role in _ROLES:
                    self.seen.setdefault(_ROLES[role], operand)
        return func(*args, **(kwargs or {}))


def payload_of(quantised: Any, tensor: str, shape: torch.Size, power_of_two: bool) -> Payload | None:
    """The payload of a `Float8TrainingTensor`, as an operand of `shape`; None when it is laid out otherwise.

    Args:
        quantised: (rows, K) for x, (K, N) for w, (rows, N) for dy; its `_scale` is the factor before the cast, one
            number, or one for each row of x and dy and each column of w.
        tensor: x | w | dy.
        shape: of the operand in high precision: (…, K), (N, K) or (…, N).
        power_of_two: whether scales are rounded down to powers of two.
    """
    codes, scale = quantised._data, quantised._scale
    if tensor == "w":
        codes, scale = codes.t(), scale.t() if scale.dim() == 2 else scale
    fmt = format_of(codes.dtype)
    if fmt is None or codes.numel() != shape.numel() or codes.shape[-1:] != shape[-1:]:
        return None
    inverse = torch.div(torch.ones_like(scale), scale).float()
    if scale.numel() == 1:
        recipe = CurrentScaling(power_of_two=power_of_two).text
        return Payload(codes.reshape(shape), fmt, inverse.reshape(()), recipe)
    if scale.shape != (codes.shape[0], 1):
        return None
    recipe = RowWise(power_of_two=power_of_two).text
    return Payload(codes.reshape(shape), fmt, inverse.reshape(*shape[:-1], 1), recipe)


def _rounds_scales(module: nn.Module) -> bool:
    return bool(getattr(getattr(module, "config", None), "round_scales_to_power_of_2", False))


def _node_of(node: Any) -> Any:
    """The layer's own node: the result may be a view of it, with a bias added."""
    for _ in range(4):
        if node is None or node.name() == _NODE:
            return node
        node = next((following for following, _ in node.next_functions if following is not None), None)
    return None
