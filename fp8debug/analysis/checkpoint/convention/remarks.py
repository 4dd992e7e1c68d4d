"""What is said of a checkpoint as a whole, beside what was assumed of its scales."""

from __future__ import annotations

from collections.abc import Iterator

from fp8debug.analysis.checkpoint.convention.configuration import mentions
from fp8debug.analysis.checkpoint.convention.reading import Reading
from fp8debug.analysis.checkpoint.records import Assumption
from fp8debug.analysis.checkpoint.store import Store

CAST = "cast"
"""Name of the dialect without scales."""
_FNUZ = "FNUZ"


def remarks(store: Store, reading: Reading, *, is_asked_for: bool) -> Iterator[Assumption]:
    """Sentences, each with the numbers.

    Args:
        store: the checkpoint.
        reading: how it is read.
        is_asked_for: whether somebody asked for the dialect.
    """
    n, dialect = len(reading.quantised), reading.dialect
    if is_asked_for and not reading.n_explained:
        yield Assumption(
            "checkpoint",
            f"{dialect.title} explains nothing in it: of {len(store.tensors):,} tensors, {n:,} hold codes and none of "
            "them has a scale that is named so",
        )
    if dialect.name == CAST and n:
        tensors = "the one tensor" if n == 1 else f"any of {n:,} tensors"
        yield Assumption("checkpoint", f"no scale is stored for {tensors} of codes; codes taken as values")
    for what in dict.fromkeys(reading.sorted.unread.values()):
        names = [name for name, reason in reading.sorted.unread.items() if reason == what]
        yield Assumption(
            "checkpoint",
            f"not looked at: {what}, {len(names):,} tensors with their scales; {names[0]} is the first",
        )
    where = mentions(store.configs, "fnuz")
    ocp = [one.name for one in reading.quantised if _FNUZ not in one.fmt and one.fmt.startswith(("E4M3", "E5M2"))]
    if where and ocp:
        yield Assumption(
            "checkpoint",
            f"{where} says fnuz and the file says otherwise of {_tensors(len(ocp))}, {ocp[0]} is the first: the file "
            "is believed; if it is wrong, all their values are twice what they should be",
        )


def _tensors(n: int) -> str:
    return f"{n:,} tensor{'' if n == 1 else 's'}"
