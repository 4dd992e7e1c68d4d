"""A tensor as flat memory: views where possible, copies only where the layout leaves no choice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

BLOCK = 1 << 22
"""Elements copied at once of a tensor that is not contiguous."""


def storage_order(t: torch.Tensor) -> torch.Tensor:
    """Return `t` with its dimensions in memory order, so that a transposed tensor is contiguous again."""
    if t.is_contiguous():
        return t
    strides = t.stride()
    return t.permute(sorted(range(t.dim()), key=strides.__getitem__, reverse=True))


def flat_blocks(t: torch.Tensor, *, aligned: bool = True) -> Iterator[torch.Tensor]:
    """Yield contiguous vectors that together are `t` in logical order.

    All but the last are a multiple of 8 bytes long, and if `aligned` each starts at an address divisible by 8, so that
    they may be read as 64-bit words. A contiguous tensor is yielded whole, without a copy; an empty one not at all.
    """
    if t.numel() <= 1:  # contiguous with any stride, which a view in another dtype would not take
        if t.numel():
            yield t.clone(memory_format=torch.contiguous_format).reshape(-1)
        return
    if t.is_contiguous() and not (aligned and t.data_ptr() % 8):
        yield t.reshape(-1)
        return
    row = t[0].numel() if t.dim() > 1 and t.shape[0] else 1
    if row > BLOCK // 8 and row * t.element_size() % 8 == 0:  # eight of them would be too much to copy
        for part in t:
            yield from flat_blocks(part, aligned=aligned)
        return
    rows = max(8, BLOCK // max(row, 1) // 8 * 8)
    for block in t.split(rows) if t.dim() else (t,):
        yield block.clone(memory_format=torch.contiguous_format).reshape(-1)


def row_blocks(t: torch.Tensor, elements: int) -> Iterator[torch.Tensor]:
    """Yield the rows of `t`, seen as (rows, last dimension), in order: matrices of about so many elements or one row.

    They are views, whatever the layout.
    """
    if t.dim() < 2:
        yield t.reshape(1, -1)
    elif t.dim() > 2:
        for part in t:
            yield from row_blocks(part, elements)
    else:
        yield from t.split(max(1, elements // max(1, t.shape[1])))


class _Memory:
    """A contiguous CPU tensor as numpy's array interface has it; an array made from it keeps the tensor alive."""

    __slots__ = ("__array_interface__", "_tensor")

    def __init__(self, t: torch.Tensor, numpy_type: str, shape: tuple[int, ...]) -> None:
        self._tensor = t
        self.__array_interface__ = {"version": 3, "data": (t.data_ptr(), False), "typestr": numpy_type, "shape": shape}


def as_array(t: torch.Tensor) -> npt.NDArray[Any]:
    """Return the elements of a CPU tensor, memory shared.

    Not by `t.numpy()`, which forbids ever after to resize the storage: FSDP2 does that to the weights it gathers. Nor
    by DLPack where it can be helped: it takes three times as long, which tells when every tensor of a step comes here.
    """
    if t.dtype is torch.float32 and t.is_contiguous():
        return np.asarray(_Memory(t, "=f4", tuple(t.shape)))
    return np.from_dlpack(t.detach())


def raw_bytes(t: torch.Tensor) -> npt.NDArray[np.uint8]:
    """Return the memory of a contiguous CPU tensor as bytes, shared with it."""
    return np.asarray(_Memory(t, "=u1", (t.nbytes,)))


def patterns(t: torch.Tensor) -> npt.NDArray[Any]:
    """Return the elements of a contiguous CPU tensor as a vector of unsigned integers of their width, memory shared."""
    return np.asarray(_Memory(t, f"=u{t.element_size()}", (t.numel(),)))
