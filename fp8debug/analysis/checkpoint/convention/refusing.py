"""When a checkpoint is not read at all: two readings fit, or none does. Each message says what would settle it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fp8debug.analysis.checkpoint.convention.reading import Reading
from fp8debug.analysis.checkpoint.records import Quantised, Scale
from fp8debug.analysis.checkpoint.store import Store
from fp8debug.errors import UsageError, escape, some

_LIKE_A_SCALE = re.compile(r"scale|scaling|_inv$|amax", re.IGNORECASE)


def refuse_unless_alike(readings: Sequence[Reading]) -> None:
    """Refuse a checkpoint that dialects which explain it equally well read differently.

    Raises:
        UsageError: they do.
    """
    first = readings[0]
    for other in readings[1:]:
        if not first.n_scaled:
            return
        theirs = {one.name: one for one in other.quantised}
        for one in first.quantised:
            two = theirs.get(one.name)
            if one != two:
                names = f"--as {first.dialect.name} or --as {other.dialect.name}"
                raise UsageError(
                    f"{escape(one.name)} can be read in two ways: {first.dialect.title} and {other.dialect.title} "
                    f"both fit, and {_difference(one, two)}; say which it is with {names}, or put the configuration "
                    "beside the checkpoint that says how it was quantised"
                )


def refuse_if_unexplained(store: Store, reading: Reading) -> None:
    """Refuse codes without scales where tensors beside them look like scales that no dialect explains.

    Raises:
        UsageError: that is so of most of them.
    """
    if reading.n_scaled or not reading.quantised or reading.misfits:
        return
    layers = {name.rpartition(".")[0] for name in (one.name for one in reading.quantised)}
    like = [
        one.name
        for one in reading.sorted.rest
        if one.name.rpartition(".")[0] in layers and _LIKE_A_SCALE.search(one.name.rpartition(".")[2])
    ]
    if 2 * len({name.rpartition(".")[0] for name in like}) >= len(layers):
        raise UsageError(
            f"codes are in {len(reading.quantised):,} of {len(store.tensors):,} tensors, and {escape(some(like))} "
            "beside them may be their scales, which no dialect that is known here writes so; --as cast reads the codes "
            "as they are, and --as multiplies or --as divides take `scale` and names like it for scales"
        )


def refuse_if_unreadable(reading: Reading) -> None:
    """Refuse a checkpoint whose scales are all bytes that nothing explains.

    Raises:
        UsageError: they are.
    """
    unread = [one for one in reading.misfits if not one.expected]
    if unread and not reading.n_scaled and len(unread) == len(reading.misfits):
        raise UsageError(
            f"no scale of the checkpoint can be read as {reading.dialect.title}: of {escape(unread[0].scale)}, "
            f"{unread[0].message.removeprefix('Not applied: ').removesuffix('.')}; say with --as which dialect it is, "
            "or put the configuration beside the checkpoint that says how it was quantised"
        )


def _difference(one: Quantised, two: Quantised | None) -> str:
    """What is not the same in two readings of a tensor."""
    if two is None:
        return "it holds codes in the first alone"
    if one.fmt != two.fmt:
        return f"its codes are {one.fmt} in one and {two.fmt} in the other"
    if [scale.name for scale in one.scales] != [scale.name for scale in two.scales]:
        return f"its scales are {_names(one.scales)} in one and {_names(two.scales)} in the other"
    for a, b in zip(one.scales, two.scales, strict=True):
        if a.divides != b.divides:
            return f"{escape(a.name)} multiplies in one and divides in the other"
        if a != b:
            return f"{escape(a.name)} is for {_reach(a)} in one and for {_reach(b)} in the other"
    return "the order of its codes differs"


def _names(scales: Sequence[Scale]) -> str:
    return escape(some([scale.name for scale in scales])) or "none"


def _reach(scale: Scale) -> str:
    if scale.block is not None:
        order = ", in the order of tensor cores" if scale.is_swizzled else ""
        return f"blocks of {scale.block[0]} x {scale.block[1]}{order}"
    return {"tensor": "the tensor", "line": "a line", "column": "a column"}[scale.layout]
