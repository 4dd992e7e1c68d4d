"""Where the bytes of tensors lie in a file: one after the other, without holes, up to its end."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from fp8debug.analysis.checkpoint.store.base import short
from fp8debug.errors import Fp8DebugError, some


class Extent(NamedTuple):
    """Bytes of one tensor, counted from the end of the header."""

    first: int
    last: int
    """Exclusive."""
    name: str


def check_extents(file: Path, extents: Iterable[Extent], n_bytes: int) -> None:
    """Hold what a header declares against the bytes that follow it.

    Args:
        file: for sentences.
        extents: of all tensors, in any order.
        n_bytes: of the file, after its header.

    Raises:
        Fp8DebugError: the file is cut off; tensors share bytes; or bytes belong to no tensor.
    """
    placed = sorted(extents)
    end = max((extent.last for extent in placed), default=0)
    if end > n_bytes:
        cut = [short(extent.name) for extent in placed if extent.last > n_bytes]
        raise Fp8DebugError(
            f"{file} is cut off: {end - n_bytes:,} of {end:,} bytes of tensors are missing, those of {some(cut)}; "
            f"fetch or write it again"
        )
    at, before = 0, ""
    for extent in placed:
        if extent.first == extent.last:
            continue
        if extent.first < at:
            raise Fp8DebugError(
                f"{file} is damaged: tensors {short(before)} and {short(extent.name)} share bytes "
                f"{extent.first:,} to {min(at, extent.last):,}; expected bytes of their own for each; write it again"
            )
        if extent.first > at:
            raise Fp8DebugError(_hole(file, at, extent.first))
        at, before = extent.last, extent.name
    if at < n_bytes:
        raise Fp8DebugError(_hole(file, at, n_bytes))


def _hole(file: Path, first: int, last: int) -> str:
    return (
        f"{file} is damaged: its bytes {first:,} to {last:,} after the header belong to no tensor; expected tensors "
        f"one after the other up to the end, as the format demands; write it again"
    )
