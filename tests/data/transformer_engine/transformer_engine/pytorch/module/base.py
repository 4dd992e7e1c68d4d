"""Stand-in: what all modules share: FP8 state, and when they are debugged."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from transformer_engine.debug.pytorch.debug_state import TEDebugState
from transformer_engine.pytorch.quantization import FP8GlobalStateManager, RecipeState

NAMES = ("activation", "weight", "output", "dgrad", "wgrad", "gradient")


class TransformerEngineBaseModule(nn.Module):
    """Base of the modules."""

    def __init__(self, n_gemms: int = 1, name: str | None = None) -> None:
        super().__init__()
        self.next_iter_when_debug_should_be_run: int | None = 0
        self.n_gemms = n_gemms
        self.fp8 = False
        self.fp8_meta: dict[str, Any] = {}
        self.activation_dtype = torch.float32
        self.n_debugged = 0
        if not TEDebugState.debug_enabled:
            TEDebugState.initialize()
        self.name = name if name is not None else f"Layer_{TEDebugState.get_layer_count()}"

    def prepare(self) -> bool:
        """Make the FP8 state; whether this is the first module of an autocast."""
        manager = FP8GlobalStateManager
        self.fp8 = manager.enabled
        if self.fp8 and self.fp8_meta.get("recipe") != manager.recipe:
            self.fp8_meta["recipe"] = manager.recipe
            self.fp8_meta["scaling_fwd"] = RecipeState(manager.recipe, True, 3 * self.n_gemms)
            self.fp8_meta["scaling_bwd"] = RecipeState(manager.recipe, False, 2 * self.n_gemms)
            manager.forward_states.append(self.fp8_meta["scaling_fwd"])
            manager.backward_states.append(self.fp8_meta["scaling_bwd"])
        first, manager.first = manager.first and self.fp8, False
        return first

    def is_debug_iter(self) -> bool:
        """Decided once an iteration, at the first call in it."""
        if not TEDebugState.debug_enabled:
            return False
        iteration = TEDebugState.get_iteration()
        if iteration != self.__dict__.get("debug_last_iteration"):
            following = self.next_iter_when_debug_should_be_run
            self.__dict__["debug_enabled_in_this_iteration"] = following is not None and iteration >= following
            self.__dict__["debug_last_iteration"] = iteration
        return bool(self.__dict__["debug_enabled_in_this_iteration"])

    def quantizers(self) -> list[dict[str, Any]]:
        """For each GEMM, by tensor name; debugging ones in iterations where a feature wants them."""
        plain: list[dict[str, Any]] = []
        for gemm in range(self.n_gemms):
            found: dict[str, Any] = dict.fromkeys(NAMES)
            if self.fp8:
                forward, backward = self.fp8_meta["scaling_fwd"], self.fp8_meta["scaling_bwd"]
                found["activation"] = forward.quantizer(3 * gemm)
                found["weight"] = forward.quantizer(3 * gemm + 1)
                found["gradient"] = backward.quantizer(2 * gemm)
            plain.append(found)
        if not self.is_debug_iter():
            return plain
        from transformer_engine.debug.pytorch.quantizer import DebugQuantizer

        debugging = [
            {name: DebugQuantizer(self.gemm_name(i), name, own[name]) for name in NAMES} for i, own in enumerate(plain)
        ]
        every = [quantizer for own in debugging for quantizer in own.values()]
        nexts = [quantizer.next_iter for quantizer in every if quantizer.next_iter is not None]
        self.__dict__["next_iter_when_debug_should_be_run"] = min(nexts, default=None)
        if not any(quantizer.any_feature_enabled() for quantizer in every):
            return plain
        self.n_debugged += 1
        return debugging

    def gemm_name(self, gemm: int) -> str:
        """What the debug API calls a GEMM."""
        return self.name


class Gemm(torch.autograd.Function):
    """One GEMM and its two backward ones, from what the quantizers make of the operands."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, payload: Any, own: dict[str, Any], first: bool) -> Any:
        rows = x.reshape(-1, x.shape[-1])
        held_x, held_w = _cast(own["activation"], rows), _cast(own["weight"], w if payload is None else payload)
        ctx.held, ctx.own, ctx.first, ctx.shape = (held_x, held_w), own, first, x.shape
        y = _plain(held_x) @ _plain(held_w).t()
        _show(own["output"], y)
        return y.reshape(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        held_x, held_w = ctx.held
        dy = _plain(_cast(ctx.own["gradient"], gradients[0].reshape(-1, gradients[0].shape[-1])))
        dx, dw = dy @ _plain(held_w), dy.t() @ _plain(held_x)
        _show(ctx.own["dgrad"], dx)
        _show(ctx.own["wgrad"], dw)
        if ctx.first:
            for known in FP8GlobalStateManager.backward_states:
                known.update()
        return dx.reshape(ctx.shape), dw, None, None, None


def _cast(quantizer: Any, tensor: Any) -> Any:
    return tensor if quantizer is None else quantizer(tensor)


def _plain(tensor: Any) -> torch.Tensor:
    plain: torch.Tensor = tensor.dequantize() if hasattr(tensor, "_fp8_dtype") else tensor
    return plain


def _show(quantizer: Any, tensor: torch.Tensor) -> None:
    if quantizer is not None:
        quantizer.show_result(tensor)
