"""Clipping that a few columns bear: a channel of keys or activations that outgrew a scale which fits all others."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from fp8debug.analysis.checkpoint.checks.hit import Hit, Subject
from fp8debug.analysis.checkpoint.checks.names import is_no_weight
from fp8debug.analysis.checkpoint.records import CheckPlace, Quantised
from fp8debug.formats import FORMATS

_FEWEST = 16
"""Codes at the largest value: a scale from the tensor's own amax leaves one or a few there."""
_OF_COLUMN, _OF_ALL = 0.01, 0.05
"""More of a column than the first, less of the tensor than the second: it is that column's doing."""
_MOST_COLUMNS = 0.1
"""Share of the columns that may stand out; where more do, clipping is everywhere."""
_CHANCE = 1e-4
"""That codes at the largest value, which fall into columns at random, gather so in any."""


def column_clipped(subject: Subject) -> Iterator[Hit]:
    """Columns of which many codes are at the format's largest value, in tensors of which few are."""
    whole = [one for one in subject.convention.quantised if _has_one_number(one) and not one.is_packed]
    for one in whole:
        facts = subject.facts.codes.get(one.name)
        if facts is None or facts.n_largest < _FEWEST or facts.n_largest > _OF_ALL * facts.n:
            continue
        counts = _at_largest(subject, one)
        if _stands_out(counts, one.lines):
            shares = counts / one.lines
            share = facts.n_largest / facts.n
            yield Hit("column_clipped", _place(one, shares, share), len(whole), weight=float(shares.max()))


def _stands_out(counts: npt.NDArray[np.float64], lines: int) -> bool:
    """Whether some columns have far more codes at the largest value than all others, and more than chance gives."""
    most = float(counts.max())
    typical = float(counts.sum() / counts.size)
    is_many = most > _OF_COLUMN * lines and most > 10 * typical
    if not is_many or np.count_nonzero(counts > _OF_COLUMN * lines) > max(1.0, _MOST_COLUMNS * counts.size):
        return False
    # Chernoff's bound of a Poisson count, for as many columns as there are; the others tell what is usual.
    expected = max(1.0, float(counts.sum()) - most) / max(1, counts.size - 1)
    log_chance = most - expected - most * math.log(most / expected)
    return log_chance + math.log(counts.size) < math.log(_CHANCE)


def _place(one: Quantised, shares: npt.NDArray[np.float64], share: float) -> CheckPlace:
    worst = int(shares.argmax())
    others = int((shares > _OF_COLUMN).sum()) - 1
    more = f" (and more than 1 % of {others:,} other columns)" if others else ""
    message = (
        f"{one.name}: {100 * shares[worst]:.1f} % of column {worst} are at {FORMATS[one.fmt].max:g}, the largest code"
        f"{more}, and {100 * share:.2g} % of the whole: what is larger there was clipped."
    )
    return CheckPlace(
        one.name, message, numbers={"column": worst, "column_share": float(shares[worst]), "share": share}
    )


def _has_one_number(one: Quantised) -> bool:
    """Whether one scale is for all of it; keys and values may lack one, which is 1 then."""
    if not one.scales:
        return is_no_weight(one.name)
    return len(one.scales) == 1 and one.scales[0].layout == "tensor"


def _at_largest(subject: Subject, one: Quantised) -> npt.NDArray[np.float64]:
    fmt = FORMATS[one.fmt]
    counts = np.zeros(one.length, np.float64)
    for _, raw in subject.store.bands(one.name, lines=one.lines):
        counts += ((raw & (fmt.sign_bit - 1)) == fmt.max_code).sum(axis=0)
    return counts
