"""Square matrices that are stored transposed: the codes alone, or with their scales."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fp8debug.analysis.checkpoint.reference.hypotheses.evidence import Evidence
from fp8debug.analysis.checkpoint.reference.hypotheses.sums import finite
from fp8debug.analysis.checkpoint.reference.hypotheses.trial import Reading, Trial, try_reading
from fp8debug.analysis.checkpoint.reference.lines import QuantisedLines, lines_of
from fp8debug.analysis.checkpoint.store import n_bytes_of
from fp8debug.formats import Float32Array

_MOST_BYTES = 1 << 28
_AT_A_TIME = 1 << 20


def transposed(evidence: Evidence) -> Iterator[Trial]:
    """The transposed codes with the scales as they stand, and with these transposed as well."""
    pair, shape = evidence.pair, evidence.pair.tensor.shape
    if len(shape) != 2 or shape[0] != shape[1] or pair.lines != shape[0]:
        return
    if n_bytes_of(pair.store.tensors[pair.tensor.name]) > _MOST_BYTES:
        return
    codes, factors = _turned(evidence)
    is_even = evidence.factors.size == 1
    of = " of the codes" if evidence.fmt else ""
    alone = "" if is_even else ", its scales are not"
    readings = [Reading("transposed", f"the matrix{of} is stored transposed{alone}", evidence.factors, codes)]
    if not is_even:
        words = "the matrix of the codes is stored transposed, and its scales with it"
        readings.append(Reading("transposed", words, factors, codes))
    for reading in readings:
        found = try_reading(evidence, reading)
        if found is not None:
            yield found
            return


def _turned(evidence: Evidence) -> tuple[Float32Array, Float32Array]:
    """Codes and factors of the columns that have the numbers of the sampled lines, as lines."""
    pair = evidence.pair
    ours = lines_of(pair.store, pair.tensor)
    codes, factors = [], []
    step = max(1, _AT_A_TIME // max(1, evidence.length))
    for first in range(0, pair.lines, step):
        last = min(pair.lines, first + step)
        if isinstance(ours, QuantisedLines):
            codes.append(ours.codes(first, last)[:, evidence.lines])
            spread = np.broadcast_to(ours.factors(first, last), (last - first, evidence.length))
            factors.append(spread[:, evidence.lines])
        else:
            codes.append(ours.values(first, last)[:, evidence.lines])
    turned = finite(np.ascontiguousarray(np.concatenate(codes).T))
    if not factors:
        return turned, np.ones((1, 1), np.float32)
    return turned, np.ascontiguousarray(np.concatenate(factors).T)
