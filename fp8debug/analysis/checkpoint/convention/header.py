"""What the header of a safetensors file says of single parameters, as torchao writes it: a JSON text for each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fp8debug.analysis.checkpoint.convention.configuration import as_block
from fp8debug.analysis.checkpoint.dialects.dialect import Pair

_FORMATS = {
    "float8_e4m3fn": "E4M3",
    "float8_e5m2": "E5M2",
    "float8_e4m3fnuz": "E4M3FNUZ",
    "float8_e5m2fnuz": "E5M2FNUZ",
    "float4_e2m1fn_x2": "E2M1",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """Of one parameter."""

    kind: str
    """Name of the class that it was: Float8Tensor, MXTensor, NVFP4Tensor, Int4Tensor."""
    block: Pair | None
    """Lines x columns that share a scale; a number that stands for a whole axis is one of the parameter's sizes."""
    is_swizzled: bool
    fmt: str | None
    """Element format where it is said; the empty text: one that is not known here."""


def entries_in(metadata: Mapping[str, str]) -> dict[str, Entry]:
    """By name of the parameter; texts that are something else are passed over."""
    return {name: entry for name, text in metadata.items() for entry in _entry(text)}


def _entry(text: str) -> Iterator[Entry]:
    try:
        value = json.loads(text) if text.startswith("{") else None
    except (ValueError, RecursionError):
        return
    if not isinstance(value, dict) or not isinstance(value.get("_type"), str):
        return
    data = value.get("_data")
    data = data if isinstance(data, dict) else {}
    yield Entry(value["_type"], _block(data.get("block_size")), data.get("is_swizzled_scales") is True, _format(data))


def _block(value: Any) -> Pair | None:
    return as_block(value[-2:] if isinstance(value, list) and len(value) > 1 else value)


def _format(data: Mapping[str, Any]) -> str | None:
    elements = data.get("elem_dtype")
    if not isinstance(elements, dict):
        return None
    return _FORMATS.get(str(elements.get("_data")), "")
