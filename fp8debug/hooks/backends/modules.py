"""Hooks on modules of the known kinds: `x`, `w` and `y` in the forward hook, gradients by tensor hooks.

`dy` is taken on the output, `dx` on a view of the input, `dw` on the weight.

No full backward hooks: they break on in-place operations and under torch.func. The forward hook is prepended, so
that it sees the gathered weight before FSDP2's own hook reshards it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from fp8debug.hooks.backends.base import FoundLayer, Observer
from fp8debug.hooks.backends.compiled import GraphWatch, never_alone, watch_input, watch_output
from fp8debug.hooks.backends.gradients import Gemm, GradientHook, WeightGradientHook
from fp8debug.hooks.backends.kinds import kind_of
from fp8debug.hooks.backends.module_hook import ModuleHook
from fp8debug.hooks.backends.placement import WeightPlacements, megatron_placements, placement_of
from fp8debug.hooks.backends.precision import high_precision, precision_asked
from fp8debug.hooks.dtypes import dtype_word
from fp8debug.hooks.observed import LOCAL
from fp8debug.hooks.transforms import has_data
from fp8debug.replay import Moment


class ModuleBackend:
    """Captures modules of the known kinds."""

    def __init__(self) -> None:
        self._handles: dict[str, list[RemovableHandle]] = {}

    def attach(self, model: nn.Module, layers: Sequence[FoundLayer], observer: Observer) -> None:
        """Hook the layers; whatever had one of their names before is let go."""
        weights = WeightPlacements(model)
        for layer in layers:
            self._release(layer.name)
            handles = self._handles[layer.name] = []
            hook = ForwardHook(observer, layer, weights, handles.append)
            handles.append(layer.module.register_forward_hook(hook, prepend=True, with_kwargs=True))
            if "dx" in observer.tensors:
                handles.append(layer.module.register_forward_pre_hook(InputIsolation(hook.token), with_kwargs=True))

    def detach(self) -> None:
        """Remove our hooks and no others."""
        for name in tuple(self._handles):
            self._release(name)

    def _release(self, name: str) -> None:
        for handle in self._handles.pop(name, ()):
            handle.remove()


class InputIsolation(ModuleHook):
    """Gives the layer a view of its input, so that the gradient of the view is this GEMM's `dx` and no other's."""

    def __init__(self, token: torch.Tensor | None) -> None:
        self._token = token

    @never_alone
    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = _input(args, kwargs)
        if not isinstance(x, torch.Tensor) or not x.requires_grad:
            return None
        own = watch_input(self._token, x) if torch.compiler.is_compiling() else x.view_as(x)
        return ((own, *args[1:]), kwargs) if args else (args, kwargs | {_input_name(kwargs): own})


class ForwardHook(ModuleHook):
    """Forward hook of one layer; knows the layer's module by its address alone."""

    def __init__(
        self,
        observer: Observer,
        layer: FoundLayer,
        weights: WeightPlacements,
        keep: Callable[[RemovableHandle], None],
    ) -> None:
        kind = kind_of(layer.module)
        self._observer = observer
        self._name = layer.name
        self._layer_id = id(layer.module)
        self._kind = layer.kind
        self._parameter = layer.parameter
        self._transposed = kind is not None and kind.transposed
        self._takes_weight = kind is not None and kind.takes_weight
        self._weights = weights
        self._keep = keep
        self._weight: weakref.ref[torch.Tensor] | None = None
        self._said: set[str] = set()
        self._graph = GraphWatch(observer, layer.module, self)
        self.token = self._graph.token
        self._gemms: dict[tuple[torch.dtype, torch.dtype, int], dict[str, Gemm]] = {}

    @never_alone
    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        if torch.compiler.is_compiling():  # nothing real to see: these are the compiler's stand-ins
            return watch_output(self.token, _input(args, kwargs), self._weight_read(module, args, kwargs), output)
        observer = self._observer
        if not observer.active:
            return None
        try:
            weight = self._weight_read(module, args, kwargs)
            self._observe(observer, module, _input(args, kwargs), weight, _first_tensor(output))
        except Exception as error:  # whatever goes wrong in here is ours and must not reach the training
            observer.fail(error)
        return None

    def observe_at_run_time(
        self, module: nn.Module, x: torch.Tensor, weight: torch.Tensor | None, y: torch.Tensor
    ) -> None:
        """What the operator in a compiler's graph calls with real tensors."""
        self._observe(self._observer, module, x, weight, y)

    def _weight_read(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
        stored = _stored_weight(module, self._parameter)
        return _given_weight(args, kwargs, stored) if self._takes_weight else stored

    def _observe(
        self, observer: Observer, module: nn.Module, x: Any, weight: torch.Tensor | None, y: torch.Tensor | None
    ) -> None:
        if y is None or not isinstance(x, torch.Tensor):
            observer.skip(self._name, f"takes {type(x).__name__}, expected a tensor in and out: not captured")
            return
        if x.is_nested or y.is_nested:
            observer.skip(self._name, "takes a nested tensor, expected rows of one length: not captured")
            return
        if not (has_data(x) and has_data(y)):
            return
        moment = observer.clock.forward(self._layer_id, module.training)
        gemm_dtype, high = y.dtype, high_precision(x, weight)
        gemms = self._gemms_of(module, gemm_dtype, high, x.dim())
        if gemm_dtype is not high and high.is_floating_point and high.itemsize > 1:
            self._say_once(
                observer, "precision_differs", f"asked to run in {dtype_word(high)}, ran in {dtype_word(gemm_dtype)}"
            )
        wanted = observer.tensors
        if "x" in wanted:
            observer.observe(gemms["x"].seen(x, moment))
        if "w" in wanted and observer.wants_weight(self._name, moment):
            self._observe_weight(observer, module, weight, gemms["w"], moment)
        if "y" in wanted:
            observer.observe(gemms["y"].seen(y, moment))
        if moment.pass_ == "eval":
            return
        if y.requires_grad:
            _gemm_result(y).register_hook(GradientHook(observer, gemms["dy"], moment, y.shape))
        if "dx" in wanted and x.requires_grad:
            x.register_hook(GradientHook(observer, gemms["dx"], moment, x.shape))
        if "dw" in wanted:
            self._watch_weight(observer, weight, gemms["dw"])

    def _gemms_of(self, module: nn.Module, gemm_dtype: torch.dtype, high: torch.dtype, n_dims: int) -> dict[str, Gemm]:
        """What is the same in every call that computes so."""
        key = gemm_dtype, high, n_dims
        if key not in self._gemms:
            shares = megatron_placements(module, self._kind, n_dims)
            self._gemms[key] = {
                t: Gemm(self._name, t, gemm_dtype, precision_asked(module, t, high), shares.get(t, LOCAL))
                for t in ("x", "w", "dy", "y", "dx", "dw")
            }
        return self._gemms[key]

    def _observe_weight(
        self, observer: Observer, module: nn.Module, weight: torch.Tensor | None, gemm: Gemm, moment: Moment
    ) -> None:
        if weight is None:
            self._say_once(observer, "not_captured", "its weight is computed on access: w is not recorded", "w")
            return
        oriented = weight.detach().t() if self._transposed else weight
        local, placement = placement_of(oriented, gemm.placement)
        placement = self._weights.of(module, self._parameter, weight, placement, moment.step)
        observer.observe(gemm.observed(local, placement, moment))

    def _watch_weight(self, observer: Observer, weight: torch.Tensor | None, gemm: Gemm) -> None:
        """Hook a weight that is trained, once for as long as the layer has it."""
        if not isinstance(weight, nn.Parameter) or not weight.requires_grad:
            return
        if self._weight is None or self._weight() is not weight:
            self._weight = weakref.ref(weight)
            self._keep(weight.register_hook(WeightGradientHook(observer, gemm, self._transposed)))

    def _say_once(self, observer: Observer, kind: str, message: str, tensor: str | None = None) -> None:
        if kind not in self._said:
            self._said.add(kind)
            observer.note(kind, message, self._name, tensor)


def _input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0] if args else kwargs.get(_input_name(kwargs))


def _input_name(kwargs: dict[str, Any]) -> str:
    """What the caller calls the input: nn.Linear has it as `input`, Megatron as `input_`, Conv1D as `x`."""
    return next((name for name in ("input", "input_", "x") if name in kwargs), "input")


def _gemm_result(y: torch.Tensor) -> torch.Tensor:
    """The tensor whose gradient is the GEMM's `dy`.

    A biased nn.Linear returns, for an input of three dimensions, a view of its GEMM's result, and a hook on a view is
    lost without a word once the view is modified in place, as by ReLU(inplace=True).
    """
    base = y._base
    if base is None or not base.requires_grad or base.numel() != y.numel() or base.shape[-1] != y.shape[-1]:
        return y
    return base


def _first_tensor(output: Any) -> torch.Tensor | None:
    if isinstance(output, (tuple, list)) and output:
        output = output[0]
    return output if isinstance(output, torch.Tensor) else None


def _stored_weight(module: nn.Module, name: str) -> torch.Tensor | None:
    """The weight as it is stored. A parametrized one is computed on access, which could change the training."""
    weight = module._parameters.get(name)
    return weight if weight is not None else module.__dict__.get(name)


def _given_weight(args: tuple[Any, ...], kwargs: dict[str, Any], stored: torch.Tensor | None) -> torch.Tensor | None:
    """The weight that the caller gives to one call, as for tied embeddings; else the stored one."""
    given = args[1] if len(args) > 1 else kwargs.get("weight")
    return given if isinstance(given, torch.Tensor) else stored
