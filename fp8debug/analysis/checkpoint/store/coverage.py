"""Whether the pieces of a tensor are all there, each once."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import numpy.typing as npt

from fp8debug.analysis.checkpoint.store.metadata import Chunk

MOST_CELLS = 1 << 24
"""Cells of the grid that the edges of all pieces make; ranks cut tensors into few."""
Int64Array = npt.NDArray[np.int64]


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
    edges = [np.unique(np.concatenate([[0, size], first[:, at], last[:, at]])) for at, size in enumerate(shape)]
    if prod(len(cut) - 1 for cut in edges) > MOST_CELLS:
        return f"its {len(chunks):,} pieces are cut at too many places to be put together"
    counts = _counts(edges, first, last)
    if (counts > 1).any():
        cell = np.argwhere(counts > 1)[0]
        corner = np.array([cut[at] for cut, at in zip(edges, cell, strict=True)])
        one, other = np.flatnonzero(((first <= corner) & (corner < last)).all(axis=1))[:2]
        return f"its pieces {_shown(first[one], last[one])} and {_shown(first[other], last[other])} overlap"
    if counts.all():
        return None
    n = prod(shape) - sum(prod(chunk.shape) for chunk in chunks)
    cell = np.argwhere(counts == 0)[0]
    low, high = (np.array([cut[at + step] for cut, at in zip(edges, cell, strict=True)]) for step in (0, 1))
    return f"{n:,} of {prod(shape):,} elements are in no piece, such as {_shown(low, high)}"


def _counts(edges: list[Int64Array], first: Int64Array, last: Int64Array) -> npt.NDArray[np.uint16]:
    """How many pieces hold each cell of the grid."""
    counts = np.zeros([len(cut) - 1 for cut in edges], np.uint16)
    lows = [np.searchsorted(cut, first[:, axis]) for axis, cut in enumerate(edges)]
    highs = [np.searchsorted(cut, last[:, axis]) for axis, cut in enumerate(edges)]
    for at in range(len(first)):
        counts[tuple(slice(low[at], high[at]) for low, high in zip(lows, highs, strict=True))] += 1
    return counts


def _shown(first: Int64Array, last: Int64Array) -> str:
    return "[" + ", ".join(f"{low}:{high}" for low, high in zip(first.tolist(), last.tolist(), strict=True)) + "]"
