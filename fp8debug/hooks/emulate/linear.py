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

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from fp8debug.blocks import GEMMS
from fp8debug.errors import Fp8DebugError
from fp8debug.hooks.emulate.plan import EmulationPlan
from fp8debug.hooks.emulate.scales import ScaleKeeper
from fp8debug.hooks.measure.quantize import quantize
from fp8debug.recipes import BlockRecipe
from fp8debug.replay import Moment, ScaleInForce

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_SEED = 0


class Emulator:
    """What all layers of an emulation share."""

    def __init__(self, plan: EmulationPlan) -> None:
        self.plan = plan
        self.keeper = ScaleKeeper(plan.recipe, plan.rolls)
        self._generators: dict[torch.device, torch.Generator] = {}

    def generator(self, device: torch.device) -> torch.Generator:
        """Source of stochastic rounding on the device, always seeded alike; torch's own is left alone."""
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(_SEED)
        return self._generators[device]


class EmulatedCall:
    """One call of one layer: when it is, and with which scales its operands are cast."""

    def __init__(self, emulator: Emulator, layer: str, moment: Moment) -> None:
        self._emulator = emulator
        self._layer = layer
        self.moment = moment
        self._in_force: dict[str, ScaleInForce] = {}
        self._scales: dict[str, np.float32 | None] = {}

    def scales_in_force(self, tensor: str) -> list[ScaleInForce]:
        """The delayed scale that x, w or dy of this call is cast with; empty under recipes without a memory.

        Empty also for a tensor that is not cast. May be asked from the call on; asked for dy before its cast, it tells
        which scale that will have.
        """
        if not self._emulator.plan.casts(tensor):
            return []
        if tensor in self._in_force:
            return [self._in_force[tensor]]
        return self._emulator.keeper.expected(self._layer, tensor, self._moment_of(tensor))

    def backward(self) -> None:
        """A gradient has reached the layer."""
        self._emulator.keeper.backward()

    def operand(self, tensor: str, value: Tensor) -> Operand:
        """An operand to be read by GEMMs; x and w are cast again in the backward pass, with the scale they had."""
        if self._emulator.plan.casts(tensor) and (tensor == "dy" or tensor not in self._scales):
            keeper = self._emulator.keeper
            in_force = keeper.in_force(self._layer, tensor, self._moment_of(tensor), value)
            if in_force is not None:
                self._in_force[tensor] = in_force
            self._scales[tensor] = keeper.own_scale(tensor, value) if in_force is None else in_force.scale
        return Operand(self._emulator, tensor, value, self._scales.get(tensor))

    def _moment_of(self, tensor: str) -> Moment:
        return self.moment._replace(pass_="backward") if tensor == "dy" else self.moment


class Operand:
    """x, w or dy, in high precision, as the GEMMs of one pass read it."""

    def __init__(self, emulator: Emulator, tensor: str, value: Tensor, scale: np.float32 | None) -> None:
        self._emulator = emulator
        self._tensor = tensor
        self._scale = scale
        self._row: Tensor | None = None
        self.value = value

    def read(self, gemm: str, orientation: str, dtype: torch.dtype) -> Tensor:
        """float32, the contracted axis last; rounded to `dtype` alone where the GEMM does not read it quantised."""
        plan = self._emulator.plan
        if not plan.quantizes(self._tensor, gemm):
            exact = self.value.detach().to(dtype).float()
            return exact if orientation == "row" else exact.T
        if isinstance(plan.recipe, BlockRecipe):
            return self._quantize(orientation)
        if self._row is None:
            self._row = self._quantize("row")
        return self._row if orientation == "row" else self._row.T

    def _quantize(self, orientation: str) -> Tensor:
        recipe, generator = self._emulator.plan.recipe, None
        if isinstance(recipe, BlockRecipe) and recipe.rounds_stochastically(self._tensor):
            generator = self._emulator.generator(self.value.device)
        return quantize(self.value, recipe, self._tensor, orientation, self._scale, generator=generator)


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

    def __init__(self, module: nn.Linear, name: str, emulator: Emulator) -> None:
        self.emulator = emulator
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
        self.last_call = EmulatedCall(self.emulator, self._name, moment)
        y: Tensor = EmulatedGemms.apply(x.reshape(-1, x.shape[-1]), weight, self.last_call)  # type: ignore[no-untyped-call]
        if bias is not None:
            y = y + bias.to(y.dtype)
        return y.view(*x.shape[:-1], y.shape[-1])

    def _require_plain(self, x: Tensor, weight: Tensor) -> None:
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


def _is_autocast(device_type: str) -> bool:
    return torch.amp.autocast_mode.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)


def _outside_autocast(device_type: str) -> AbstractContextManager[object]:
    """Keep autocast from rounding the operands of our FP32 GEMM."""
    return torch.autocast(device_type, enabled=False) if _is_autocast(device_type) else nullcontext()
