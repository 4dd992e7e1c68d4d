"""Whether a tensor is what its reference says, and if not quite, in which way.

Verdicts rest on bounds that hold for any values, not on typical ones: rounding to a format with m mantissa bits moves a
value in its normal range by at most 1 / (2^(m+1) + 1), hence the SQNR of a tensor is at least 20 log10(2^(m+1) + 1) and
its gain is off by no more than that. Of blocks, those count to which the bound applies (`proving`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fp8debug.analysis.checkpoint.records import Quantised, Stored
from fp8debug.analysis.checkpoint.reference.blocks import BlockSums
from fp8debug.analysis.checkpoint.reference.compared import ComparedTensor
from fp8debug.analysis.checkpoint.reference.encoding import (
    bytes_equal,
    is_nonfinite_in_both,
    is_same_encoding,
    recoded_db,
)
from fp8debug.analysis.checkpoint.reference.pair import Pair
from fp8debug.analysis.checkpoint.reference.proving import proving, proving_lines
from fp8debug.analysis.checkpoint.reference.rounding import (
    OneRounding,
    decibel,
    of_both_db,
    one_rounding,
    precision_of,
)
from fp8debug.analysis.checkpoint.reference.summing import Rows
from fp8debug.metrics import Float64Array

MOST_NEAREST = 0.97
"""Share of codes that are the nearest ones, from which on a tensor was rounded from these very values. The ways in
which writers divide by a scale differ in fewer than 1 in 1,000 codes."""
_WORSE_DB = 1.0
"""Loss beyond one rounding that is worth a word."""
_SLACK_DB = 0.5
"""For what is below the normal range even in a tensor that is mostly above it."""
_ENOUGH = 256
"""Elements of a block that prove something."""
_FEW_CODES = 8
"""Tensors of so few values have equal codes under any scales."""


@dataclass(frozen=True, slots=True)
class _Limits:
    """What rounding alone explains."""

    error: float
    """Of a tensor."""
    block_error: float
    """Of blocks with enough elements."""
    most: float
    """Of any block."""
    healthy_db: float


@dataclass(frozen=True, slots=True)
class _Verdict:
    name: str
    healthy_db: float | None = None
    nearest: float | None = None


def judge(pair: Pair, reference_name: str) -> ComparedTensor:
    """Compare a tensor with its reference: one pass over both, and a sample once more."""
    sums, of_lines = pair.sums_and_lines()
    blocks, lines = _blocks(pair, sums)
    proven = proving(pair, blocks, lines)
    verdict = _verdict(pair, sums, [blocks.only(proven), of_lines.only(proving_lines(pair, of_lines))])
    total = sums.total
    gains, sqnrs = blocks.block_gain(), blocks.block_sqnr_db()
    worst = _worst(np.where(proven, sqnrs, np.nan))
    known = gains[proven & np.isfinite(gains)]
    return ComparedTensor(
        name=pair.name,
        reference_name=reference_name,
        verdict=verdict.name,
        n=total.n,
        n_nonfinite=int(sums.n_nonfinite.sum()),
        gain=sums.gain,
        sqnr_db=sums.sqnr_db,
        rel_l2=sums.rel_l2,
        cosine=sums.cosine,
        healthy_sqnr_db=verdict.healthy_db,
        block=pair.block,
        block_gain_min=float(known.min()) if known.size else None,
        block_gain_median=float(np.median(known)) if known.size else None,
        block_gain_max=float(known.max()) if known.size else None,
        worst_block=worst,
        worst_block_sqnr_db=None if worst is None else float(sqnrs[worst]),
        n_blocks=int(gains.size),
        hypotheses=(),
        nearest=verdict.nearest,
    )


def _limits(ours: Quantised | Stored, theirs: Quantised | Stored) -> _Limits:
    one, other = precision_of(ours), precision_of(theirs)
    if isinstance(ours, Stored) and isinstance(theirs, Stored):
        # Copies of one another: one rounding, to the coarser of both.
        coarse = max(one, other, key=lambda precision: precision.error)
        return _Limits(coarse.error, coarse.error, coarse.most, coarse.healthy_db)
    return _Limits(
        one.error + _of_rounded(other.error),
        one.block_error + _of_rounded(other.block_error),
        one.most + _of_rounded(other.most),
        of_both_db(one.healthy_db, other.healthy_db),
    )


def _of_rounded(error: float) -> float:
    """A relative error, as a share of the rounded value: the reference is that."""
    return error / (1 - error)


def _verdict(pair: Pair, sums: BlockSums, parts: list[BlockSums]) -> _Verdict:
    """The verdict; `parts` are the blocks and the lines that prove something."""
    total, limits = sums.total, _limits(pair.tensor, pair.reference)
    different = _Verdict("different", limits.healthy_db)
    if sums.is_exact and not sums.n_nonfinite.any():
        return _Verdict("identical" if is_same_encoding(pair) else "recoded")
    if total.n == 0 or total.sum_x2 == 0 or (sums.n_nonfinite.any() and not is_nonfinite_in_both(pair)):
        return different
    sqnr, gain = sums.sqnr_db, sums.gain
    if sqnr is None or sqnr >= recoded_db(pair):
        return _Verdict("recoded")
    once = one_rounding(pair)
    if once is not None:
        different = replace(different, nearest=once.nearest)
    if gain is None or abs(gain - 1) > limits.error or sqnr < decibel(limits.error) - _SLACK_DB:
        return different
    if any(_has_bad_block(part, limits) for part in parts):
        return different
    if once is None or once.sqnr_db is None:
        return _Verdict("faithful", limits.healthy_db)
    if _is_scale_a_little_off(pair, sums, parts[0], once):
        return different
    return _faithful(pair, once, limits)


def _is_scale_a_little_off(pair: Pair, sums: BlockSums, blocks: BlockSums, once: OneRounding) -> bool:
    """Whether other factors leave one rounding, or nothing, where the stored ones leave more: within its bounds, but
    no rounding does that."""
    if isinstance(pair.reference, Quantised):  # the very codes of the reference, with other scales
        is_same = pair.quantised.fmt == pair.reference.fmt and pair.quantised.shape == pair.reference.shape
        if not is_same or len(np.unique(next(pair.store.chunks(pair.name)))) <= _FEW_CODES:
            return False
        return bytes_equal(pair.store, pair.name, pair.reference_store, pair.reference.name)
    sqnr, best = sums.sqnr_db, blocks.grouped(_ENOUGH).best_sqnr_db
    if sqnr is None or best is None or once.sqnr_db is None or not _is_worse(once):
        return False
    return best >= once.sqnr_db - _SLACK_DB and sqnr < best - _WORSE_DB


def _is_worse(once: OneRounding) -> bool:
    """Whether what is stored is not one rounding of the reference."""
    stored = np.inf if once.stored_sqnr_db is None else once.stored_sqnr_db
    return once.nearest < MOST_NEAREST and once.sqnr_db is not None and stored < once.sqnr_db - _WORSE_DB


def _faithful(pair: Pair, once: OneRounding, limits: _Limits) -> _Verdict:
    """Between one rounding and two."""
    if isinstance(pair.reference, Quantised):
        if once.nearest < MOST_NEAREST:
            return _Verdict("faithful", limits.healthy_db, once.nearest)
        return _Verdict("requantised", once.sqnr_db, once.nearest)
    return _Verdict("requantised" if _is_worse(once) else "faithful", once.sqnr_db, once.nearest)


def _blocks(pair: Pair, sums: BlockSums) -> tuple[BlockSums, Rows]:
    """Sums of the very blocks of the scale, of a sample of them where there are too many, and their first lines."""
    if pair.keeps_all_blocks:
        return sums, pair.block_starts()
    codes = pair.code_sums()
    return codes.times(pair.code_factors(codes)), codes.lines


def _has_bad_block(blocks: BlockSums, limits: _Limits) -> bool:
    """Whether blocks are off by more than rounding explains; small ones are taken together with those beside them."""
    groups = blocks.grouped(_ENOUGH)
    enough = groups.n >= min(_ENOUGH, blocks.n.sum())
    return _is_off(groups.only(enough), limits.block_error) or _is_off(blocks, limits.most)


def _is_off(blocks: BlockSums, error: float) -> bool:
    with np.errstate(invalid="ignore"):
        off = np.abs(blocks.block_gain() - 1) > error
        noisy = blocks.block_sqnr_db() < decibel(error) - _SLACK_DB
    return bool(np.any(off & noisy))


def _worst(sqnrs: Float64Array) -> tuple[int, int] | None:
    if not np.isfinite(sqnrs).any():
        return None
    row, column = np.unravel_index(int(np.nanargmin(sqnrs)), sqnrs.shape)
    return int(row), int(column)
