"""The dispatch mode: everything passes through unchanged; GEMMs and copies of weights are looked at afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fp8debug.hooks.backends.dispatch.gemms import Gemm, gemm_operations, outside_autograd, whole_operations
from fp8debug.hooks.backends.dispatch.provenance import Source, Weights, follow, following_operations
from fp8debug.hooks.transforms import has_data, outside_transforms

Look = Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None]
"""Looks at one operation: the operation, its arguments, its result."""


class GemmMode(TorchDispatchMode):
    """Shows GEMMs to `on_gemm`; follows copies of weights."""

    def __init__(
        self,
        weights: Weights,
        on_gemm: Callable[[Gemm], None],
        on_aside: Callable[[Source], None],
        fail: Callable[[Exception], None],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._weights = weights
        self._on_gemm = on_gemm
        self._on_aside = on_aside
        """Called with a weight that a GEMM reads where it cannot be followed."""
        self._fail = fail
        self._readers = gemm_operations()
        self._whole = whole_operations()
        self._following = following_operations()
        self._looks: dict[Any, Look] = dict.fromkeys(self._readers, self._see_gemm)
        self._looks |= dict.fromkeys(self._following, self._see_copy)
        self._looks |= dict.fromkeys(outside_autograd(), self._see_aside)

    supports_higher_order_operators = True
    """They pass through; without this word torch refuses to run them."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """What is compiled stays compiled while the mode is in force."""
        return True

    def add(self, looks: dict[Any, Look]) -> None:
        """Look at more operations."""
        for operation, look in looks.items():
            known = self._looks.get(operation)
            self._looks[operation] = look if known is None else _both(known, look)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        look = self._looks.get(func)
        if look is None:
            if func in self._whole:
                with self:
                    return func.decompose(*args, **kwargs)
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        try:
            with outside_transforms():
                look(func, args, kwargs, result)
        except Exception as error:  # ours, never the training's
            self._fail(error)
        return result

    def _see_gemm(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        gemm = self._readers[func](args, kwargs, result)
        if gemm is not None and has_data(gemm.a):
            self._on_gemm(gemm)

    def _see_aside(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        for operand in args:
            if isinstance(operand, Tensor) and (source := self._weights.source(operand)) is not None:
                self._on_aside(source)

    def _see_copy(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        follow(self._weights, self._following[func], args, result)


def _both(first: Look, second: Look) -> Look:
    def look(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        first(func, args, kwargs, result)
        second(func, args, kwargs, result)

    return look


def is_readable(*tensors: Tensor) -> bool:
    """Whether these are plain tensors or parts of distributed ones, with no other dispatch of their own."""
    return all(type(t) in (Tensor, torch.nn.Parameter) or hasattr(t, "_local_tensor") for t in tensors)
