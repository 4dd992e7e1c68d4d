"""Which blocks of a tensor prove something: where values, codes and scales are in the normal range of their formats."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fp8debug.analysis.checkpoint.records import Quantised
from fp8debug.analysis.checkpoint.reference.blocks import BlockSums
from fp8debug.analysis.checkpoint.reference.lines import QuantisedLines
from fp8debug.analysis.checkpoint.reference.pair import Pair
from fp8debug.analysis.checkpoint.reference.rounding import precision_of
from fp8debug.analysis.checkpoint.reference.summing import Rows
from fp8debug.formats import ELEMENT_FORMATS, BoolArray


def proving(pair: Pair, blocks: BlockSums, lines: Rows) -> BoolArray:
    """Blocks where rounding has a bound: elsewhere it may flush everything, as in rows that are small beside others.

    Args:
        pair: the tensors.
        blocks: its sums.
        lines: first line of each row of blocks.
    """
    factors = pair.factors_at(lines, pair.block[1])
    with np.errstate(all="ignore"):
        smallest = blocks.n * (precision_of(pair.tensor).min_normal * factors) ** 2
        # No rounding makes a block twice as large: one whose codes alone are in the normal range is wrong.
        proven: BoolArray = (blocks.sum_x2 >= smallest) | (blocks.sum_q2 >= 4 * smallest)
        proven &= blocks.sum_x2 > 0
        if isinstance(pair.reference_lines, QuantisedLines):
            theirs = pair.factors_at(lines, pair.block[1], pair.reference_lines)
            proven &= blocks.sum_x2 >= blocks.n * (precision_of(pair.reference).min_normal * theirs) ** 2
    return proven & _has_normal_scales(pair, lines)


def proving_lines(pair: Pair, of_lines: BlockSums) -> BoolArray:
    """Lines where rounding has a bound, of a tensor whose blocks have several lines; of others, none: blocks tell all.

    Args:
        pair: the tensors.
        of_lines: its sums, (lines, 1).
    """
    if pair.block[0] == 1 or isinstance(pair.reference, Quantised) or not pair.keeps_all_blocks:
        return np.zeros(of_lines.n.shape, np.bool_)
    factors = pair.factors_at(pair.block_starts(), pair.block[1]).max(axis=1, initial=0)[pair.block_rows]
    with np.errstate(all="ignore"):
        smallest = of_lines.n * (precision_of(pair.tensor).min_normal * factors[:, None]) ** 2
        proven: BoolArray = of_lines.sum_x2 >= smallest
    return proven & (of_lines.sum_x2 > 0)


def _has_normal_scales(pair: Pair, lines: Rows) -> BoolArray | np.bool_:
    """Blocks whose scale, where that is a small float itself (NVFP4), was not rounded below its normal range."""
    scale = pair.tensor.grid_scale if isinstance(pair.tensor, Quantised) else None
    if scale is None or scale.encoding not in ELEMENT_FORMATS:
        return np.True_
    alone = QuantisedLines(pair.store, replace(pair.quantised, scales=(replace(scale, divides=False),)))
    stored = np.abs(pair.factors_at(lines, pair.block[1], alone))
    is_normal: BoolArray = stored >= ELEMENT_FORMATS[scale.encoding].min_normal
    return is_normal
