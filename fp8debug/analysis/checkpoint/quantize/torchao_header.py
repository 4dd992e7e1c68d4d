"""What torchao's safetensors support writes into the header: of each parameter the class it was, and its attributes.

Names and values are those of torchao 0.18 (prototype/safetensors, and the attributes of its tensor classes).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fp8debug.analysis.checkpoint.quantize.torch_archive import TORCH_DTYPES
from fp8debug.analysis.checkpoint.records import Stored
from fp8debug.formats import Format

Json = dict[str, Any]

_FORMATS = {"E4M3": "float8_e4m3fn", "E5M2": "float8_e5m2", "E2M1": "float4_e2m1fn_x2"}


def torchao_header(weights: Sequence[Stored], recipe: str, fmt: Format, plain: Sequence[str]) -> dict[str, str]:
    """Texts of the header, by their keys.

    Args:
        weights: what is quantised, as it was before.
        recipe: kind of the recipe.
        fmt: of the codes.
        plain: names of all other tensors.
    """
    make = {"nvfp4": _nvfp4_tensor, "mxfp8": _mx_tensor, "mxfp4": _mx_tensor}.get(recipe, _float8_tensor)
    texts = {name: json.dumps({"_type": "Tensor"}) for name in plain}
    texts |= {one.name: json.dumps(make(one, recipe, fmt)) for one in weights}
    return {**texts, "tensor_names": json.dumps(list(texts))}


def _float8_tensor(weight: Stored, recipe: str, fmt: Format) -> Json:
    *stack, lines, length = weight.shape
    block = {"current": [lines, length], "rowwise": [1, length], "block": [128, 128]}[recipe]
    data = {
        "block_size": [1] * len(stack) + block,
        "mm_config": None,
        "act_quant_kwargs": None,
        "kernel_preference": _typed("KernelPreference", "AUTO"),
        "dtype": _dtype(weight),
    }
    return {"_type": "Float8Tensor", "_data": data, "_tensor_data_names": ["qdata", "scale"]}


def _mx_tensor(weight: Stored, recipe: str, fmt: Format) -> Json:
    data = {
        "elem_dtype": _typed("torch.dtype", _FORMATS[fmt.name]),
        "block_size": 32,
        "orig_dtype": _dtype(weight),
        "kernel_preference": _typed("KernelPreference", "EMULATED"),
        "act_quant_kwargs": None,
        "is_swizzled_scales": False,
    }
    return {"_type": "MXTensor", "_data": data, "_tensor_data_names": ["qdata", "scale"]}


def _nvfp4_tensor(weight: Stored, recipe: str, fmt: Format) -> Json:
    data = {
        "is_swizzled_scales": False,
        "use_triton_kernel": False,
        "act_quant_kwargs": None,
        "block_size": 16,
        "orig_dtype": _dtype(weight),
    }
    return {"_type": "NVFP4Tensor", "_data": data, "_tensor_data_names": ["per_tensor_scale", "qdata", "scale"]}


def _dtype(weight: Stored) -> Json:
    return _typed("torch.dtype", TORCH_DTYPES[weight.dtype])


def _typed(kind: str, value: str) -> Json:
    return {"_type": kind, "_data": value}
