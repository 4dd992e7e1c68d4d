"""Rows of queries and keys in the order of the other kind of rotary positions: interleaved, or in halves."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fp8debug.analysis.checkpoint.reference.compared import Hypothesis
from fp8debug.analysis.checkpoint.reference.hypotheses.cells import Rows
from fp8debug.analysis.checkpoint.reference.hypotheses.evidence import Evidence
from fp8debug.analysis.checkpoint.reference.hypotheses.sums import finite, square_sum
from fp8debug.analysis.checkpoint.reference.hypotheses.trial import Trial
from fp8debug.formats import Float32Array

_WHOLE_HEADS = (128, 64, 256, 96, 80, 112, 72, 48, 32, 16)
_HEADS = (
    *((size, 0, size) for size in _WHOLE_HEADS),
    (192, 128, 64), (576, 512, 64), (128, 0, 64), (128, 0, 32), (96, 64, 32), (80, 0, 32), (64, 0, 16),
)  # fmt: skip
"""Rows of a head, the first of them that rotate, and how many do; the last ones are of MLA and of models that rotate
a part."""
_MOST_LINES, _FIRST_LINES = 256, 8
_LEAST_EXPLAINED = 0.9
_MUCH_MORE = 2.0


def rotated(evidence: Evidence) -> Iterator[Trial]:
    """Each order for heads of each size, on some of the lines; on the elements of a bias."""
    is_vector = evidence.pair.lines == 1
    n = evidence.length if is_vector else evidence.pair.lines
    for size, first, part in _HEADS:
        if n % size or (size == n and part < 16):
            continue
        for is_halved in (True, False):
            order = _order(n, size, first, part, is_halved)
            explained, left = _of_vector(evidence, order) if is_vector else _of_lines(evidence, order)
            if explained >= _LEAST_EXPLAINED:
                words = _words(n, size, first, part, is_halved, "elements" if is_vector else "rows")
                if evidence.quantised and left > _MUCH_MORE * evidence.rounding_error / evidence.sum_x2:
                    words += "; the scales did not move with the codes"
                yield Trial(Hypothesis("rotary_order", words, explained, None), 0, 1.0)
                return


def _order(n: int, size: int, first: int, part: int, is_halved: bool) -> Rows:
    """(n,): for each of our rows that of the reference; halved: 0, 2, 4, ..., 1, 3, 5, ... within a head."""
    head = np.arange(size)
    pairs = np.arange(part).reshape(part // 2, 2) if is_halved else np.arange(part).reshape(2, part // 2)
    head[first : first + part] = first + pairs.T.reshape(-1)
    order: Rows = (np.arange(0, n, size)[:, None] + head).reshape(-1)
    return order


def _of_vector(evidence: Evidence, order: Rows) -> tuple[float, float]:
    return _explained(evidence.values, evidence.x, evidence.x[:, order])


def _of_lines(evidence: Evidence, order: Rows) -> tuple[float, float]:
    """Share of the error that the order takes away, of lines that it moves and of others, and what it leaves, over the
    power of the reference."""
    moved = np.flatnonzero(order[evidence.lines] != evidence.lines)
    if not moved.size or evidence.length < 2:
        return 0.0, 1.0
    some = moved[np.linspace(0, moved.size - 1, min(_FIRST_LINES, moved.size)).astype(np.intp)]
    if _explained(evidence.values[some], evidence.x[some], _reference(evidence, order[evidence.lines[some]]))[0] < 0.5:
        return 0.0, 1.0
    step = max(1, len(evidence.lines) // _MOST_LINES)
    chosen = np.arange(step // 2, len(evidence.lines), step)
    theirs = _reference(evidence, order[evidence.lines[chosen]])
    return _explained(evidence.values[chosen], evidence.x[chosen], theirs)


def _reference(evidence: Evidence, lines: Rows) -> Float32Array:
    if evidence.is_whole:
        return evidence.x[lines]
    read = evidence.pair.reference_lines.values
    return np.concatenate([finite(read(int(line), int(line) + 1)) for line in lines])


def _explained(ours: Float32Array, before: Float32Array, after: Float32Array) -> tuple[float, float]:
    error, left, power = square_sum(before - ours), square_sum(after - ours), square_sum(after)
    return (float(np.clip(1 - left / error, 0, 1)), left / power) if error and power else (0.0, 1.0)


def _words(n: int, size: int, first: int, part: int, is_halved: bool, noun: str) -> str:
    of = f"each head of {size}" if part == size else f"{noun} {first} to {first + part - 1} of each head of {size}"
    if n == size and part < size:
        of = f"{noun} {first} to {first + part - 1}"
    half = part // 2
    shown = (
        f"{first}, {first + 2}, ..., {first + 1}, {first + 3}, ..."
        if is_halved
        else (f"{first}, {first + half}, {first + 1}, {first + half + 1}, ...")
    )
    ours, theirs = ("halves", "pairs") if is_halved else ("pairs", "halves")
    return (
        f"the {noun} are the reference's in the order {shown} within {of}: rotary positions are laid out in {ours} "
        f"here and in {theirs} there, as a conversion of q and k that was done on one side alone, or twice, leaves them"
    )
