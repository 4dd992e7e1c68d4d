"""Whether a tensor is what its reference says, and if not quite, in which way.

Verdicts rest on bounds that hold for any values, not on typical ones: rounding to a format with m mantissa bits moves a
value in its normal range by at most 1 / (2^(m+1) + 1), hence the SQNR of a tensor is at least 20 log10(2^(m+1) + 1) and
its gain is off by no more than that. Of blocks, those count to which the bound applies (`proving`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fp8debug.analysis.checkpoint.records import Quantised, Stored
from fp8debug.analysis.checkpoint.reference.blocks import BlockSums
from fp8debug.analysis.checkpoint.reference.compared import ComparedTensor
from fp8debug.analysis.checkpoint.reference.pair import Pair, Rows
from fp8debug.analysis.checkpoint.reference.proving import proving
from fp8debug.analysis.checkpoint.reference.rounding import (
    decibel,
    of_both_db,
    one_rounding,
    precision_of,
)
from fp8debug.analysis.checkpoint.store import Store, n_bytes_of
from fp8debug.formats import BoolArray
from fp8debug.metrics import Float64Array

MOST_NEAREST = 0.97
"""Share of codes that are the nearest ones, from which on a tensor was rounded from these very values. The ways in
which writers divide by a scale differ in fewer than 1 in 1,000 codes."""
_SECOND_ROUNDING_DB = 1.0
_ENOUGH = 256
"""Elements of a block that prove something."""
_FLOAT32_ROUNDING_DB = 126.0
"""Factors that were multiplied in another order or divided by differ by up to three roundings in FP32."""


@dataclass(frozen=True, slots=True)
class _Limits:
    """What rounding alone explains."""

    gain_error: float
    block_gain_error: float
    floor_db: float
    block_floor_db: float
    healthy_db: float


def judge(pair: Pair, reference_name: str) -> ComparedTensor:
    """Compare a tensor with its reference: one pass over both, and a sample once more."""
    sums = pair.sums()
    blocks, lines = _blocks(pair, sums)
    proven = proving(pair, blocks, lines)
    verdict, healthy = _verdict(pair, sums, _only(blocks, proven))
    total = sums.total
    gains, sqnrs = blocks.block_gain(), blocks.block_sqnr_db()
    worst = _worst(np.where(proven, sqnrs, np.nan))
    known = gains[proven & np.isfinite(gains)]
    return ComparedTensor(
        name=pair.name,
        reference_name=reference_name,
        verdict=verdict,
        n=total.n,
        n_nonfinite=int(sums.n_nonfinite.sum()),
        gain=sums.gain,
        sqnr_db=sums.sqnr_db,
        rel_l2=sums.rel_l2,
        cosine=sums.cosine,
        healthy_sqnr_db=healthy,
        block=pair.block,
        block_gain_min=float(known.min()) if known.size else None,
        block_gain_median=float(np.median(known)) if known.size else None,
        block_gain_max=float(known.max()) if known.size else None,
        worst_block=worst,
        worst_block_sqnr_db=None if worst is None else float(sqnrs[worst]),
        n_blocks=int(gains.size),
        hypotheses=(),
    )


def _limits(ours: Quantised | Stored, theirs: Quantised | Stored) -> _Limits:
    one, other = precision_of(ours), precision_of(theirs)
    if isinstance(ours, Stored) and isinstance(theirs, Stored):
        # Copies of one another: one rounding, to the coarser of both.
        coarse = max(one, other, key=lambda precision: precision.error)
        error = block_error = coarse.error
        healthy = coarse.healthy_db
    else:
        error = one.error + _of_rounded(other.error)
        block_error = one.block_error + _of_rounded(other.block_error)
        healthy = of_both_db(one.healthy_db, other.healthy_db)
    # Half a dB for what is below the normal range even in a tensor that is mostly above it.
    floor, block_floor = decibel(error) - 0.5, decibel(block_error) - 0.5
    return _Limits(error, block_error, floor, block_floor, healthy)


def _of_rounded(error: float) -> float:
    """A relative error, as a share of the rounded value: the reference is that."""
    return error / (1 - error)


def _verdict(pair: Pair, sums: BlockSums, proven: BlockSums) -> tuple[str, float | None]:
    """The verdict, and the SQNR that right scales give."""
    total, limits = sums.total, _limits(pair.tensor, pair.reference)
    if sums.is_exact and not sums.n_nonfinite.any():
        return ("identical" if _is_same_encoding(pair) else "recoded"), None
    if total.n == 0 or total.sum_x2 == 0:
        return "different", limits.healthy_db
    sqnr, gain = sums.sqnr_db, sums.gain
    if sums.n_nonfinite.any() and not _is_nonfinite_in_both(pair):
        return "different", limits.healthy_db
    if sqnr is None or sqnr >= _recoded_db(pair):
        return "recoded", None
    if gain is None or abs(gain - 1) > limits.gain_error or sqnr < limits.floor_db:
        return "different", limits.healthy_db
    if _has_bad_block(proven, limits):
        return "different", limits.healthy_db
    return _faithful(pair, sqnr, limits)


def _faithful(pair: Pair, sqnr: float, limits: _Limits) -> tuple[str, float | None]:
    """Between one rounding and two."""
    once = one_rounding(pair)
    if once is None or once.sqnr_db is None:
        return "faithful", limits.healthy_db
    if isinstance(pair.reference, Quantised):
        is_of_reference = once.nearest >= MOST_NEAREST
        return ("requantised", once.sqnr_db) if is_of_reference else ("faithful", limits.healthy_db)
    is_worse = once.nearest < MOST_NEAREST and sqnr < once.sqnr_db - _SECOND_ROUNDING_DB
    return ("requantised" if is_worse else "faithful"), once.sqnr_db


def _recoded_db(pair: Pair) -> float:
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


def _blocks(pair: Pair, sums: BlockSums) -> tuple[BlockSums, Rows]:
    """Sums of the very blocks of the scale, of a sample of them where there are too many, and their first lines."""
    if pair.keeps_all_blocks:
        return sums, pair.block_starts()
    codes = pair.code_sums()
    return codes.times(pair.code_factors(codes)), codes.lines


def _only(blocks: BlockSums, kept: BoolArray) -> BlockSums:
    return BlockSums(*(np.where(kept, getattr(blocks, name), 0.0) for name in BlockSums.__slots__))


def _has_bad_block(blocks: BlockSums, limits: _Limits) -> bool:
    """Whether blocks are off by more than rounding explains; small ones are taken together with those beside them."""
    groups = _grouped(blocks, _ENOUGH)
    with np.errstate(invalid="ignore"):
        off = np.abs(groups.block_gain() - 1) > limits.block_gain_error
        noisy = groups.block_sqnr_db() < limits.block_floor_db
    return bool(np.any(off & noisy & (groups.n >= min(_ENOUGH, blocks.n.sum()))))


def _grouped(blocks: BlockSums, enough: int) -> BlockSums:
    """Neighbours in a row, then rows, added up until each has so many elements."""
    largest = max(1.0, float(blocks.n.max(initial=1)))
    rows, columns = blocks.n.shape
    across = min(columns, int(-(-enough // largest))) or 1
    down = int(-(-enough // (largest * across)))
    at_columns, at_rows = np.arange(0, columns, across), np.arange(0, rows, down)
    return BlockSums(
        *(
            np.add.reduceat(np.add.reduceat(getattr(blocks, name), at_columns, axis=1), at_rows, axis=0)
            for name in BlockSums.__slots__
        )
    )


def _worst(sqnrs: Float64Array) -> tuple[int, int] | None:
    if not np.isfinite(sqnrs).any():
        return None
    row, column = np.unravel_index(int(np.nanargmin(sqnrs)), sqnrs.shape)
    return int(row), int(column)


def _is_same_encoding(pair: Pair) -> bool:
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
    return alike and _bytes_equal(pair.store, ours.name, pair.reference_store, theirs.name)


def _bytes_equal(store: Store, name: str, other_store: Store, other: str) -> bool:
    if n_bytes_of(store.tensors[name]) != n_bytes_of(other_store.tensors[other]):
        return False
    pairs = zip(store.chunks(name), other_store.chunks(other), strict=True)
    return all(np.array_equal(one, two) for one, two in pairs)


def _is_nonfinite_in_both(pair: Pair) -> bool:
    """Whether all that is not finite in ours is not in the reference either."""
    return all(not np.any(~np.isfinite(q) & np.isfinite(x)) for _, x, q in pair.bands())
