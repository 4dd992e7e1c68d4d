"""The largest value that a scale leaves room for: kept where it does not follow from the amax and the gap.

With one record a step, amax / 2**gap is that value. Over several records, or steps that share a column, the largest
amax and the worst gap need not be of the same one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from fp8debug.analysis.page.records import Floats, Plane
from fp8debug.analysis.page.sources import BY_METRIC, sql_of

LIMIT = "largest_held"
_Key = tuple[str, str | None, str | None]


def without_derivable(planes: Sequence[Plane]) -> tuple[Plane, ...]:
    """All planes but limits that the amax and the gap tell."""
    told = {_key(plane): values for plane, values in _derived(planes)}
    return tuple(
        plane
        for plane in planes
        if plane.metric != LIMIT
        or _key(plane) not in told
        or not np.allclose(plane.values, told[_key(plane)], rtol=1e-4, atol=0, equal_nan=True)
    )


def with_limits(planes: Sequence[Plane], span: int) -> tuple[Plane, ...]:
    """All planes, and the limits that `without_derivable` left out; before columns are merged."""
    known = {_key(plane) for plane in planes if plane.metric == LIMIT}
    left_out = [
        Plane(LIMIT, *_key(gap), values, sql_of(BY_METRIC[LIMIT], *_key(gap), span))
        for gap, values in _derived(planes)
        if _key(gap) not in known and gap.recipe != "current"
    ]
    place = 1 + max((i for i, plane in enumerate(planes) if plane.metric in ("scale_gap_bits", LIMIT)), default=-1)
    return (*planes[:place], *left_out, *planes[place:])


def _derived(planes: Sequence[Plane]) -> Iterator[tuple[Plane, Floats]]:
    """Each plane of a gap, and the largest value that fits by it."""
    amax = {plane.operand: plane.values for plane in planes if plane.metric == "amax"}
    for plane in planes:
        if plane.metric == "scale_gap_bits" and plane.operand in amax:
            values = amax[plane.operand] * np.exp2(-plane.values.astype(np.float64))
            yield plane, values.astype(np.float32)


def _key(plane: Plane) -> _Key:
    return plane.operand, plane.recipe, plane.fmt
