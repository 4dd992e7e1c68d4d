"""Whether the pieces of a tensor are all there, each once."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import numpy.typing as npt

from fp8debug.analysis.checkpoint.store.metadata import Chunk

_MOST_CELLS = 1 << 20
"""Cells of the finest grid in which a missing part is looked for."""


def fault_of(shape: tuple[int, ...], chunks: Sequence[Chunk]) -> str | None:
    """What is wrong with the pieces of a tensor, a part of a sentence; None: nothing is.

    Args:
        shape: of the tensor.
        chunks: its pieces, none of them empty, all within it.
    """
    if len(chunks) == 1 and chunks[0].shape == shape:
        return None
    first = np.array([chunk.offsets for chunk in chunks], np.int64).reshape(len(chunks), len(shape))
    last = first + np.array([chunk.shape for chunk in chunks], np.int64).reshape(len(chunks), len(shape))
    pair = _overlapping(first, last)
    if pair is not None:
        return f"its pieces {_shown(first[pair[0]], last[pair[0]])} and {_shown(first[pair[1]], last[pair[1]])} overlap"
    n = sum(prod(chunk.shape) for chunk in chunks)
    if n == prod(shape):
        return None
    return f"{prod(shape) - n:,} of {prod(shape):,} elements are in no piece{_missing(shape, first, last)}"


def _overlapping(first: npt.NDArray[np.int64], last: npt.NDArray[np.int64]) -> tuple[int, int] | None:
    for at in range(len(first) - 1):
        common = (np.maximum(first[at], first[at + 1 :]) < np.minimum(last[at], last[at + 1 :])).all(axis=1)
        if common.any():
            return at, at + 1 + int(common.argmax())
    return None


def _missing(shape: tuple[int, ...], first: npt.NDArray[np.int64], last: npt.NDArray[np.int64]) -> str:
    """`, such as [0:4, 2:4]`: one block of a grid whose lines are the edges of all pieces, where it is not too fine."""
    cuts = [np.unique(np.concatenate([[0, size], first[:, axis], last[:, axis]])) for axis, size in enumerate(shape)]
    if prod(len(cut) - 1 for cut in cuts) > _MOST_CELLS:
        return ""
    covered = np.zeros([len(cut) - 1 for cut in cuts], bool)
    for low, high in zip(first, last, strict=True):
        index = tuple(
            slice(int(np.searchsorted(cut, low[axis])), int(np.searchsorted(cut, high[axis])))
            for axis, cut in enumerate(cuts)
        )
        covered[index] = True
    at = np.argwhere(~covered)[0]
    low = np.array([cut[place] for cut, place in zip(cuts, at, strict=True)])
    high = np.array([cut[place + 1] for cut, place in zip(cuts, at, strict=True)])
    return f", such as {_shown(low, high)}"


def _shown(first: npt.NDArray[np.int64], last: npt.NDArray[np.int64]) -> str:
    return "[" + ", ".join(f"{low}:{high}" for low, high in zip(first.tolist(), last.tolist(), strict=True)) + "]"
