"""What a module's own state, input and output say of its GEMMs' operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from fp8debug.hooks.backends.transformer_engine.gemms import TEGemm
from fp8debug.hooks.backends.transformer_engine.passes import Watched
from fp8debug.hooks.backends.transformer_engine.payloads import is_quantized
from fp8debug.hooks.backends.transformer_engine.wording import dtype_asked
from fp8debug.hooks.dtypes import dtype_word

_RESULTS = ("y", "dx", "dw")


def state_of(module: nn.Module) -> Any:
    """The module's FP8 state; None where it does not compute in FP8."""
    return getattr(module, "fp8_meta", None) if getattr(module, "fp8", False) else None


def dtype_asked_of(module: nn.Module, meta: Any, tensor: str) -> str | None:
    """dtype that the operand was to be read in; None for results."""
    if tensor in _RESULTS:
        return None
    if isinstance(meta, Mapping):
        return dtype_asked(meta.get("recipe"), tensor)
    activation = getattr(module, "activation_dtype", None)
    return None if activation is None else dtype_word(activation)


def rows_of_experts(watched: Watched, given: Any) -> list[int] | None:
    """Rows of each GEMM of a GroupedLinear; None where they are known to the device alone."""
    if watched.kind != "GroupedLinear" or given is None:
        return None
    if isinstance(given, torch.Tensor):
        return [int(n) for n in given] if given.device.type == "cpu" else None
    return [int(n) for n in given]


def visible_operands(
    watched: Watched, tensors: Mapping[str, Any], splits: Sequence[int] | None
) -> dict[tuple[TEGemm, str], torch.Tensor]:
    """Operands and results that a module's input, output and its gradient are, as far as they are plain tensors."""
    plain = {name: t for name, t in tensors.items() if isinstance(t, torch.Tensor) and not is_quantized(t)}
    found: dict[tuple[TEGemm, str], torch.Tensor] = {}
    for gemm in watched.layers:
        for name, tensor in plain.items():
            if watched.kind == "GroupedLinear":
                rows = tensor.reshape(-1, tensor.shape[-1])
                if splits is not None and sum(splits) == len(rows):
                    found[gemm, name] = rows.split(list(splits))[gemm.place]
            elif watched.kind == "Linear" or (name != "x" and gemm.suffix != "fc1"):
                found[gemm, name] = tensor
    return found
