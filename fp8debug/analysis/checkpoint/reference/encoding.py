"""Whether two tensors hold equal values, and whether in the same encoding."""

from __future__ import annotations

import numpy as np

from fp8debug.analysis.checkpoint.records import Quantised, Stored
from fp8debug.analysis.checkpoint.reference.pair import Pair
from fp8debug.analysis.checkpoint.reference.rounding import decibel
from fp8debug.analysis.checkpoint.store import Store, n_bytes_of

_FLOAT32_ROUNDING_DB = 126.0
"""Factors that were multiplied in another order or divided by differ by up to three roundings in FP32."""


def recoded_db(pair: Pair) -> float:
    """SQNR from which on two encodings hold equal values: what rounding of products in FP32 leaves, or of the plain
    tensor or the scales to 16 bits."""
    plain = [one.dtype for one in (pair.tensor, pair.reference) if isinstance(one, Stored)]
    if len(plain) == 2:
        return np.inf
    narrow = [dtype for dtype in (*plain, *_scale_encodings(pair)) if dtype in ("BF16", "F16")]
    if not narrow:
        return _FLOAT32_ROUNDING_DB
    return min(decibel(1 / (2 ** {"BF16": 8, "F16": 11}[dtype] + 1)) for dtype in narrow)


def _scale_encodings(pair: Pair) -> tuple[str, ...]:
    """Of both sides' scales, where they are two different ones."""
    sides = [one.scales for one in (pair.tensor, pair.reference) if isinstance(one, Quantised)]
    encodings = {scale.encoding for scales in sides for scale in scales}
    return tuple(encodings) if len(sides) == 2 and len(encodings) > 1 else ()


def is_same_encoding(pair: Pair) -> bool:
    """Whether the very bytes are equal, and are read alike."""
    ours, theirs = pair.tensor, pair.reference
    if isinstance(ours, Stored) or isinstance(theirs, Stored):
        return isinstance(ours, Stored) and isinstance(theirs, Stored) and ours.dtype == theirs.dtype
    if (ours.fmt, ours.shape) != (theirs.fmt, theirs.shape) or len(ours.scales) != len(theirs.scales):
        return False
    alike = all(
        (one.encoding, one.shape, one.divides, one.layout, one.block)
        == (other.encoding, other.shape, other.divides, other.layout, other.block)
        for one, other in zip(ours.scales, theirs.scales, strict=True)
    )
    names = [
        (ours.name, theirs.name),
        *((one.name, two.name) for one, two in zip(ours.scales, theirs.scales, strict=True)),
    ]
    return alike and all(bytes_equal(pair.store, one, pair.reference_store, two) for one, two in names)


def bytes_equal(store: Store, name: str, other_store: Store, other: str) -> bool:
    if n_bytes_of(store.tensors[name]) != n_bytes_of(other_store.tensors[other]):
        return False
    pairs = zip(store.chunks(name), other_store.chunks(other), strict=True)
    return all(np.array_equal(one, two) for one, two in pairs)


def is_nonfinite_in_both(pair: Pair) -> bool:
    """Whether all that is not finite in ours is not in the reference either."""
    return all(not np.any(~np.isfinite(q) & np.isfinite(x)) for _, x, q in pair.bands())
