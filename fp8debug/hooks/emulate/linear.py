"""One nn.Linear whose three GEMMs read quantised operands.

The arithmetic is that of torchao's emulated float8 training, bit for bit: an operand is scaled, cast and divided by its
scale in FP32, the GEMM is an FP32 one, its result is rounded to the dtype that the layer computes in, and the bias is
added afterwards. `w` is quantised as it is stored, `x` as the layer reads it under autocast.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from fp8debug.errors import Fp8DebugError
from fp8debug.gemms import GEMMS
from fp8debug.hooks.emulate.layer import LayerRecipes
from fp8debug.hooks.emulate.operands import EmulatedCall, Emulator, Operand
from fp8debug.hooks.transforms import inside_transform

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class EmulatedGemms(torch.autograd.Function):
    """y = x w^T and its two backward GEMMs; x (tokens, K), w (N, K), y (tokens, N)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, call: EmulatedCall) -> Tensor:
        # In high precision: no more memory than the layer takes anyway, and FSDP may take the weight away in between.
        ctx.save_for_backward(x, w)
        ctx.call = call
        return _gemm("fprop", {"x": call.operand("x", x), "w": call.operand("w", w)}, x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, w = ctx.saved_tensors
        call: EmulatedCall = ctx.call
        call.backward()
        operands = {"dy": call.operand("dy", dy), "w": call.operand("w", w), "x": call.operand("x", x)}
        dx = _gemm("dgrad", operands, dy.dtype) if ctx.needs_input_grad[0] else None
        dw = _gemm("wgrad", operands, dy.dtype) if ctx.needs_input_grad[1] else None
        return dx, dw, None


def _gemm(name: str, operands: dict[str, Operand], dtype: torch.dtype) -> Tensor:
    """y, dx or dw in `dtype`."""
    (a, a_way), (b, b_way) = GEMMS[name]
    with _outside_autocast(operands[a].value.device.type):
        return torch.mm(operands[a].read(name, a_way, dtype), operands[b].read(name, b_way, dtype).T).to(dtype)


class EmulatedForward:
    """Stands in for `forward` of one nn.Linear.

    A copy of the module computes in high precision, and a pickled one can be loaded where fp8debug is not installed.
    """

    def __init__(self, module: nn.Linear, name: str, emulator: Emulator, recipes: LayerRecipes) -> None:
        self.emulator = emulator
        self.recipes = recipes
        self.active = True
        self.last_call: EmulatedCall | None = None
        self._module = weakref.ref(module)
        self._name = name
        # A compiler would freeze the scales into its graph: it ends the graph here and begins another one after us.
        self._run: Callable[[Tensor], Tensor] = torch.compiler.disable(self._compute)

    def __call__(self, input: Tensor) -> Tensor:
        return self._run(input)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return getattr, (self._module(), "forward")  # of the copy, which has no `forward` of its own at that moment

    def uninstall(self) -> None:
        """Give the module its own `forward` back, unless somebody has replaced us: then do as it would."""
        self.active = False
        module = self._module()
        if module is not None and vars(module).get("forward") is self:
            del module.forward

    def _compute(self, x: Tensor) -> Tensor:
        module = self._module()
        assert isinstance(module, nn.Linear)
        weight, bias = module.weight, module.bias
        if not self.active:
            return functional.linear(x, weight, bias)
        if x.dtype in _DTYPES and _is_autocast(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        elif x.dtype != weight.dtype:
            return functional.linear(x, weight, bias)  # it says what is wrong with that
        self._require_plain(x, weight)
        moment = self.emulator.keeper.forward(id(module), module.training)
        self.last_call = EmulatedCall(self.emulator, self._name, self.recipes, moment)
        y: Tensor = EmulatedGemms.apply(x.reshape(-1, x.shape[-1]), weight, self.last_call)  # type: ignore[no-untyped-call]
        if bias is not None:
            y = y + bias.to(y.dtype)
        return y.view(*x.shape[:-1], y.shape[-1])

    def _require_plain(self, x: Tensor, weight: Tensor) -> None:
        if inside_transform():
            raise Fp8DebugError(
                f"cannot emulate {self._name} inside torch.func; expected a forward and a backward() of their own; "
                "keep the layer out with --keep-bf16"
            )
        for tensor in (x, weight):
            if type(tensor) not in (Tensor, nn.Parameter) or tensor.dtype not in _DTYPES:
                raise Fp8DebugError(
                    f"cannot emulate {self._name}: it got a {type(tensor).__name__} of {tensor.dtype}; expected plain "
                    "tensors in float32, bfloat16 or float16; keep the layer out with --keep-bf16"
                )


def emulated_forward(module: nn.Module) -> EmulatedForward | None:
    """What stands in for the module's `forward`; None where it is not emulated."""
    forward = vars(module).get("forward")
    return forward if isinstance(forward, EmulatedForward) and forward.active else None


def replace_result(module: nn.Module) -> None:
    """Have the call that is under way return what the emulation computes: it has fetched the plain `forward` before."""

    def compute_again(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        handle.remove()
        return module.forward(*args, **kwargs)

    handle = module.register_forward_hook(compute_again, prepend=True, with_kwargs=True)


def _is_autocast(device_type: str) -> bool:
    return torch.amp.autocast_mode.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)


def _outside_autocast(device_type: str) -> AbstractContextManager[object]:
    """Keep autocast from rounding the operands of our FP32 GEMM."""
    return torch.autocast(device_type, enabled=False) if _is_autocast(device_type) else nullcontext()
