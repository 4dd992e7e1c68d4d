"""The dtype that a GEMM was asked to run in: what autocast, the weight or the layer's own recipe says."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fp8debug.hooks.dtypes import dtype_word

_FLOAT8_CASTS = {
    "x": "cast_config_input",
    "w": "cast_config_weight",
    "dy": "cast_config_grad_output",
    "y": "cast_config_input",
    "dx": "cast_config_grad_output",
    "dw": "cast_config_grad_output_for_grad_weight",
}


def high_precision(x: torch.Tensor, weight: torch.Tensor | None) -> torch.dtype:
    """What the GEMM of `x` is to run in unless the layer decides: autocast's dtype (not for FP64), or the weight's."""
    device = x.device.type
    if x.dtype is not torch.float64 and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return x.dtype if weight is None else weight.dtype


def precision_asked(module: nn.Module, tensor: str, high: torch.dtype) -> str:
    """Name of the dtype that `tensor` of this layer is to be read in; torchao's Float8Linear has one an operand."""
    cast: Any = getattr(getattr(module, "config", None), _FLOAT8_CASTS.get(tensor, ""), None)
    wanted = getattr(cast, "target_dtype", None)
    if wanted is None or getattr(cast.scaling_type, "name", None) == "DISABLED":
        return dtype_word(high)
    return dtype_word(wanted)
