"""One tensor in the header of a safetensors file: checked as what a stranger wrote."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

from fp8debug.analysis.checkpoint.records import Stored
from fp8debug.analysis.checkpoint.store.base import n_bytes_of, short
from fp8debug.analysis.checkpoint.store.documents import Repeating, is_text, json_kind
from fp8debug.errors import Fp8DebugError

MOST_AXES = 64
"""Of a tensor: numpy and torch allow no more."""
_LARGEST = 1 << 63
"""No axis and no offset reaches it: the format has unsigned 64 bits, systems have signed ones for places in files."""
_MOST_OF_EMPTY = 1 << 32


def read_entry(file: Path, name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    """dtype, shape, and first and last (exclusive) byte of one tensor, counted from the end of the header.

    Args:
        file: for sentences.
        name: of the tensor.
        entry: what the header says of it, parsed.

    Raises:
        Fp8DebugError: it says what cannot be.
    """
    if not is_text(name):
        raise Fp8DebugError(f"{file} is damaged: a name in its header, {short(name)}, holds half a character")
    place = f"{file} is damaged: tensor {short(name)}"
    if not isinstance(entry, dict):
        raise Fp8DebugError(f"{place} is declared as {json_kind(entry)}; expected an object")
    if isinstance(entry, Repeating):
        raise Fp8DebugError(f"{place} has {short(entry.repeated)} twice; expected each field once")
    if missing := [field for field in ("dtype", "shape", "data_offsets") if field not in entry]:
        raise Fp8DebugError(f"{place} has no {' and no '.join(missing)}; expected dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not is_text(dtype):
        raise Fp8DebugError(f"{place} has {json_kind(dtype)} for a dtype; expected a name such as BF16")
    if not _are_sizes(shape) or not _is_shape(shape):
        raise Fp8DebugError(
            f"{place} has a shape that none can have: {_some(shape)}; expected a list of at most {MOST_AXES} whole "
            f"numbers, none negative, whose product fits in 63 bits (in 32, zeros aside, where one of them is zero)"
        )
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise Fp8DebugError(
            f"{place} has data_offsets {_some(offsets)}; expected its first byte and the one after its last"
        )
    return dtype, tuple(shape), offsets[0], offsets[1]


def _are_sizes(value: Any) -> bool:
    # A bool is an int to Python, and true is no size.
    return isinstance(value, list) and all(type(size) is int and 0 <= size < _LARGEST for size in value)


def _is_shape(sizes: list[int]) -> bool:
    if len(sizes) > MOST_AXES:
        return False
    # A tensor without values has no bytes that would limit its other axes.
    return prod(filter(None, sizes)) < (_MOST_OF_EMPTY if 0 in sizes else _LARGEST)


def _some(value: Any) -> str:
    """What stands where sizes should, shortened: it may be of any kind, depth and length."""
    if isinstance(value, list):
        return f"[{', '.join(map(_one, value[:8]))}{', …' if len(value) > 8 else ''}]"
    return _one(value)


def _one(value: Any) -> str:
    return short(repr(value)) if isinstance(value, int | float) else json_kind(value)


def check_size(file: Path, stored: Stored, got: int) -> None:
    """Hold dtype and shape of a tensor against the bytes that it has.

    Raises:
        Fp8DebugError: they differ.
    """
    expected = n_bytes_of(stored)
    if got != expected:
        raise Fp8DebugError(
            f"{file} is damaged: tensor {short(stored.name)} has {got:,} bytes; expected {expected:,} for "
            f"{stored.dtype} of shape {list(stored.shape)}; write it again"
        )
