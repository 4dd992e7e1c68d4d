"""Module hooks on nn.Linear: `x`, `w` and `y` in the forward hook, gradients by tensor hooks.

`dy` is taken on the output, `dx` on a view of the input, `dw` on the weight.

No full backward hooks: they break on in-place operations and under torch.func. The forward hook is prepended, so
that it sees the gathered weight before FSDP2's own hook reshards it.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from fp8debug.hooks.backends.base import FoundLayer, Observer
from fp8debug.hooks.observed import Observed
from fp8debug.hooks.transforms import has_data
from fp8debug.replay import Moment


class ModuleBackend:
    """Captures modules of the known kinds."""

    def __init__(self) -> None:
        self._handles: list[RemovableHandle] = []

    def attach(self, model: nn.Module, layers: Sequence[FoundLayer], observer: Observer) -> None:
        """Hook the layers."""
        for layer in layers:
            hook = ForwardHook(observer, layer.name, id(layer.module), self._handles.append)
            self._handles.append(layer.module.register_forward_hook(hook, prepend=True, with_kwargs=True))
            if "dx" in observer.tensors:
                self._handles.append(layer.module.register_forward_pre_hook(InputIsolation(), with_kwargs=True))

    def detach(self) -> None:
        """Remove our hooks and no others."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


class ModuleHook:
    """A hook that works on this model alone.

    In a copy of the model it does nothing, and a pickled model can be loaded where fp8debug is not installed.
    """

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return getattr, (contextlib.nullcontext(), "__exit__")  # takes any arguments and returns None


class InputIsolation(ModuleHook):
    """Gives the layer a view of its input, so that the gradient of the view is this GEMM's `dx` and no other's."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = _input(args, kwargs)
        if not isinstance(x, torch.Tensor) or not x.requires_grad:
            return None
        own = x.view_as(x)
        return ((own, *args[1:]), kwargs) if args else (args, kwargs | {"input": own})


class ForwardHook(ModuleHook):
    """Forward hook of one layer."""

    def __init__(self, observer: Observer, name: str, layer_id: int, keep: Callable[[RemovableHandle], None]) -> None:
        self._observer = observer
        self._name = name
        self._layer_id = layer_id
        self._keep = keep
        self._weight: weakref.ref[nn.Parameter] | None = None

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if torch.compiler.is_compiling():  # nothing real to see: these are the compiler's stand-ins
            return
        observer = self._observer
        if not observer.active:
            return
        try:
            self._observe(observer, module, _input(args, kwargs), _first_tensor(output))
        except Exception as error:  # whatever goes wrong in here is ours and must not reach the training
            observer.fail(error)

    def _observe(self, observer: Observer, module: nn.Module, x: Any, y: torch.Tensor | None) -> None:
        if y is None or not isinstance(x, torch.Tensor):
            observer.skip(self._name, f"takes {type(x).__name__}, expected a tensor in and out: not captured")
            return
        if x.is_nested or y.is_nested:
            observer.skip(self._name, "takes a nested tensor, expected rows of one length: not captured")
            return
        if not (has_data(x) and has_data(y)):
            return
        moment = observer.clock.forward(self._layer_id, module.training)
        gemm_dtype = y.dtype
        if "x" in observer.tensors:
            observer.observe(Observed(self._name, "x", x, gemm_dtype, moment))
        if "w" in observer.tensors and observer.wants_weight(self._name, moment):
            weight = _stored_weight(module)
            if weight is not None:
                observer.observe(Observed(self._name, "w", weight, gemm_dtype, moment))
        if "y" in observer.tensors:
            observer.observe(Observed(self._name, "y", y, gemm_dtype, moment))
        if y.requires_grad and moment.pass_ != "eval":
            _gemm_result(y).register_hook(GradientHook(observer, self._name, "dy", gemm_dtype, moment, y.shape))
        if "dx" in observer.tensors and x.requires_grad and moment.pass_ != "eval":
            x.register_hook(GradientHook(observer, self._name, "dx", gemm_dtype, moment, x.shape))
        if "dw" in observer.tensors and moment.pass_ != "eval":
            self._watch_weight(observer, module._parameters.get("weight"), gemm_dtype)

    def _watch_weight(self, observer: Observer, weight: torch.Tensor | None, gemm_dtype: torch.dtype) -> None:
        """Hook a weight that is trained, once for as long as the layer has it."""
        if not isinstance(weight, nn.Parameter) or not weight.requires_grad:
            return
        if self._weight is None or self._weight() is not weight:
            self._weight = weakref.ref(weight)
            self._keep(weight.register_hook(WeightGradientHook(observer, self._name, gemm_dtype)))


class GradientHook:
    """Tensor hook that reports a gradient under the key of the forward it belongs to."""

    __torch_unserializable__ = True  # saves the warning when somebody saves the tensor

    def __init__(
        self,
        observer: Observer,
        layer: str,
        tensor: str,
        gemm_dtype: torch.dtype,
        moment: Moment,
        shape: torch.Size,
    ) -> None:
        self._observer = observer
        self._layer = layer
        self._tensor = tensor
        self._gemm_dtype = gemm_dtype
        self._moment = moment._replace(pass_="backward")
        self._shape = shape

    def __call__(self, gradient: torch.Tensor) -> None:
        observer = self._observer
        if not observer.active:
            return
        try:
            observer.clock.backward()
            if self._tensor in observer.tensors:
                if gradient.shape != self._shape:  # that of the GEMM's own result
                    gradient = gradient.view(self._shape)
                observer.observe(Observed(self._layer, self._tensor, gradient, self._gemm_dtype, self._moment))
        except Exception as error:  # as in ForwardHook
            observer.fail(error)


class WeightGradientHook:
    """Tensor hook on a weight: reports what one backward adds to its gradient, over all uses of the weight."""

    def __init__(self, observer: Observer, layer: str, gemm_dtype: torch.dtype) -> None:
        self._observer = observer
        self._layer = layer
        self._gemm_dtype = gemm_dtype

    def __call__(self, gradient: torch.Tensor) -> None:
        observer = self._observer
        if not observer.active:
            return
        try:
            observer.observe(Observed(self._layer, "dw", gradient, self._gemm_dtype, observer.clock.weight_gradient()))
        except Exception as error:  # as in ForwardHook
            observer.fail(error)


def _input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0] if args else kwargs.get("input")


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


def _stored_weight(module: nn.Module) -> torch.Tensor | None:
    """The weight as it is stored. A parametrized one is computed on access, which could change the training."""
    weight = module._parameters.get("weight")
    return weight if weight is not None else module.__dict__.get("weight")
