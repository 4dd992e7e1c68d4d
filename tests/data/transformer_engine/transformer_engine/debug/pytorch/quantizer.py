"""Stand-in: a quantizer that asks the debug API what to do with a tensor, and shows it the tensor."""

from __future__ import annotations

from typing import Any

import torch

from transformer_engine.debug.pytorch.debug_state import TEDebugState

_GEMMS = {
    "activation": ("fprop", "wgrad"),
    "weight": ("fprop", "dgrad"),
    "gradient": ("dgrad", "wgrad"),
    "output": ("fprop", None),
    "dgrad": ("dgrad", None),
    "wgrad": ("wgrad", None),
}


def _api() -> Any:
    import nvdlfw_inspect.api as debug_api

    return debug_api.transformer_engine


class DebugQuantizer:
    """Made anew in every iteration in which a module is debugged."""

    def __init__(self, layer_name: str, tensor_name: str, parent: Any) -> None:
        self.layer_name, self.tensor_name, self.parent = layer_name, tensor_name, parent
        self.iteration = TEDebugState.get_iteration()
        self.next_iter: int | None = None
        named = {"layer_name": layer_name, "tensor_name": tensor_name, "iteration": self.iteration}
        self.inspects = self._answer(_api().inspect_tensor_enabled(**named))
        self.modifies, self.quantizes = [], []
        for gemm in _GEMMS[tensor_name]:
            if gemm is None:
                continue
            self.modifies.append(self._answer(_api().modify_tensor_enabled(gemm=gemm, **named)))
            asked = {"layer_name": layer_name, "gemm": gemm, "iteration": self.iteration}
            self.quantizes.append(parent is not None and self._answer(_api().fp8_gemm_enabled(**asked)))

    def _answer(self, answer: Any) -> bool:
        now, following = answer
        if following is not None:
            self.next_iter = following if self.next_iter is None else min(self.next_iter, following)
        return bool(now)

    def any_feature_enabled(self) -> bool:
        """Whether a module has to be debugged for this tensor."""
        return self.inspects or any(self.modifies) or (self.parent is not None and not all(self.quantizes))

    def __call__(self, tensor: Any) -> Any:
        if hasattr(tensor, "_fp8_dtype"):  # a weight that has no other form
            self._show(None, tensor, tensor)
            return tensor
        quantized = self.parent(tensor) if self.parent is not None and any(self.quantizes) else tensor
        self._show(tensor, quantized, quantized)
        return quantized

    def show_result(self, tensor: torch.Tensor) -> None:
        """A GEMM's result."""
        self._show(tensor, None, None)

    def _show(self, tensor: Any, rowwise: Any, columnwise: Any) -> None:
        if self.inspects:
            _api().inspect_tensor(
                layer_name=self.layer_name,
                tensor_name=self.tensor_name,
                tensor=tensor,
                iteration=TEDebugState.get_iteration(),
                tp_group=None,
                tp_size=1,
                rowwise_quantized_tensor=rowwise,
                columnwise_quantized_tensor=columnwise,
                quantizer=self.parent,
            )
