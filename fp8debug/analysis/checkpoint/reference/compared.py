"""What a comparison with a reference tells: records alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One way in which a tensor may have been read or written wrongly."""

    name: str
    """inverted | transposed_grid | ceil_scale | floor_scale | fnuz | e8m0_as_integer | block_size | stale |
    second_rounding | range_mismatch | ..."""
    message: str
    """A sentence: what would have happened."""
    explains: float
    """Share of the squared error that is gone when it is taken to be so, beyond what rounding leaves; 0 to 1."""
    factor: float | None
    """By how much values are too large under it, where that is one number."""


@dataclass(frozen=True, slots=True)
class ComparedTensor:
    """One tensor against the same of the reference; x: reference, q: this checkpoint."""

    name: str
    reference_name: str
    verdict: str
    """faithful: as rounding alone leaves it | identical: the same values | recoded: the same values in another
    encoding | requantised: faithful to a second rounding | different"""
    n: int
    n_nonfinite: int
    gain: float | None
    sqnr_db: float | None
    rel_l2: float | None
    cosine: float | None
    healthy_sqnr_db: float | None
    """What right scales give: measured by rounding the reference once with the stored ones, where the verdict is
    faithful or requantised, else what these formats give bell-shaped values; None: there is no error."""
    block: tuple[int, int] | None
    """Lines x columns of the blocks below; None: per line, or the tensor alone."""
    block_gain_min: float | None
    block_gain_median: float | None
    block_gain_max: float | None
    worst_block: tuple[int, int] | None
    """Row and column of the block with the lowest SQNR."""
    worst_block_sqnr_db: float | None
    n_blocks: int
    hypotheses: tuple[Hypothesis, ...]
    """Best first; empty where nothing is to be explained."""
    nearest: float | None = None
    """Share of the codes that are the nearest ones to the reference under the stored scales, on a sample; None: not
    looked at."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """All tensors that both have."""

    reference: str
    kind: str
    """reference | run"""
    tensors: tuple[ComparedTensor, ...]
    missing: tuple[str, ...]
    """Names of this checkpoint that the reference does not have."""
    extra: tuple[str, ...]
    """Names that only the reference has."""
    notes: tuple[str, ...] = ()
    """Sentences: how names were matched, the rounding mode of the writer, what is the same in all layers."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """Rows that the reference has of tensors that have more here, by name: those beyond are taken for padding."""
