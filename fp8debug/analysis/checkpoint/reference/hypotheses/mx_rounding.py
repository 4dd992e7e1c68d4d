"""How the writer of MX blocks rounded their scales, from the stored exponents and the reference's block maxima."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fp8debug.analysis.checkpoint.records import Quantised
from fp8debug.analysis.checkpoint.reference.hypotheses.evidence import Evidence
from fp8debug.analysis.checkpoint.reference.hypotheses.gathering import gather
from fp8debug.analysis.checkpoint.reference.pair import Pair
from fp8debug.formats import BoolArray, Float32Array, Format
from fp8debug.metrics import Float64Array
from fp8debug.recipes.mx import e8m0_scales

MODES = ("FLOOR", "RCEIL", "CEIL", "EVEN", "NEAREST")
"""With amax = m x 2^e and the format's largest value M x 2^emax, the exponent is e - emax, plus one: FLOOR never |
RCEIL if m > M | CEIL if m > 1 | EVEN if m rounds to 2 in the format's significand; NEAREST: log2(amax / largest value)
to the nearest whole number."""
_NEARLY_ALL = 0.99


@dataclass(frozen=True, slots=True)
class MxRounding:
    """The rounding mode of a tensor's block scales, and what it costs."""

    modes: tuple[str, ...]
    """Those that fit best and nearly all blocks; several: these blocks do not tell them apart. Empty: none fits."""
    fits: Mapping[str, int]
    """Blocks that each of MODES fits."""
    n_blocks: int
    """Blocks that were looked at: those that are not all zero."""
    clipped_share: float
    """Blocks whose largest value rounds beyond the format's."""
    worst_loss: float
    """Largest share of a block's largest magnitude that is lost."""
    sqnr_db: float | None

    @property
    def message(self) -> str:
        """All of it in words."""
        return in_words([self])


def name_mx_rounding(pair: Pair) -> MxRounding | None:
    """Name the rounding mode of the writer of MX blocks; None: the tensor has no exponents (E8M0) for scales.

    The reference has to be what the codes were made from; where it is not, `modes` is empty, or the one that fits
    nearly all blocks.
    """
    return rounding_of(gather(pair)) if has_exponents(pair) else None


def has_exponents(pair: Pair) -> bool:
    """Whether the scales of its blocks are exponents."""
    scale = pair.tensor.grid_scale if isinstance(pair.tensor, Quantised) else None
    return scale is not None and scale.encoding == "E8M0" and scale.layout == "block"


def rounding_of(evidence: Evidence) -> MxRounding | None:
    """The same of lines that have been taken already; None: all blocks are zero."""
    assert evidence.fmt is not None
    amax = evidence.cell_amax
    stored = evidence.cells.at_cells(evidence.factors)
    told = (amax > 0) & np.isfinite(stored) & (stored > 0)
    n = int(np.count_nonzero(told))
    if n == 0:
        return None
    fits = {mode: int(np.count_nonzero((predicted(amax, evidence.fmt, mode) == stored) & told)) for mode in MODES}
    most = max(fits.values())
    modes = tuple(mode for mode in MODES if fits[mode] == most) if most >= _NEARLY_ALL * n else ()
    clipped = _clipped(amax, stored, told, evidence.fmt) / n
    loss = _worst_loss(evidence, told)
    sqnr = 10 * float(np.log10(evidence.sum_x2 / evidence.error)) if evidence.error else None
    return MxRounding(modes, fits, n, clipped, loss, sqnr)


def predicted(amax: Float32Array, fmt: Format, mode: str) -> Float64Array:
    """Scales that a mode gives for block maxima, float64."""
    if mode != "NEAREST":
        return e8m0_scales(amax, fmt, mode.lower()).astype(np.float64)
    with np.errstate(divide="ignore"):
        exponents = np.rint(np.log2(amax.astype(np.float64) / fmt.max))
    scales: Float64Array = np.exp2(np.clip(exponents, -127, 127))
    return scales


def _clipped(amax: Float32Array, stored: Float64Array, told: BoolArray, fmt: Format) -> int:
    with np.errstate(all="ignore"):
        largest = amax / stored
    beyond = largest >= fmt.overflow_threshold if fmt.overflow_at_threshold else largest > fmt.overflow_threshold
    return int(np.count_nonzero(beyond & told))


def _worst_loss(evidence: Evidence, told: BoolArray) -> float:
    cells = evidence.cells
    of_reference, ours = cells.largest(np.abs(evidence.x)), cells.largest(np.abs(evidence.values))
    with np.errstate(all="ignore"):
        lost = 1 - ours.astype(np.float64) / of_reference
    return float(max(0.0, np.max(lost[told & (of_reference > 0)], initial=0.0)))


def in_words(roundings: Sequence[MxRounding]) -> str:
    """What tensors have in common whose modes are the same."""
    modes, n = roundings[0].modes, sum(one.n_blocks for one in roundings)
    clipped = sum(one.clipped_share * one.n_blocks for one in roundings) / n
    sqnrs = [one.sqnr_db for one in roundings if one.sqnr_db is not None]
    cost = f"{clipped:.1%} of the blocks are clipped, the largest value of one loses up to "
    cost += f"{max(one.worst_loss for one in roundings):.1%}{f', {min(sqnrs):.1f} dB' if sqnrs else ''}"
    best = max(MODES, key=lambda mode: sum(one.fits[mode] for one in roundings))
    fit = sum(one.fits[best] for one in roundings)
    how_many = f"all {n:,}" if fit == n else f"{fit:,} of {n:,}"
    if not modes:
        return f"no rounding of block scales fits: the nearest, {best}, fits {how_many} blocks; {cost}"
    if len(modes) == 1:
        return f"block scales were rounded by {best}: it fits {how_many} blocks; {cost}"
    names = f"{', '.join(modes[:-1])} and {modes[-1]}"
    return f"block scales were rounded by one of {names}, which fit {how_many} blocks alike; {cost}"
