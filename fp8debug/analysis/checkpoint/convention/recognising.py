"""Which dialect a checkpoint is written in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fp8debug.analysis.checkpoint.convention.configuration import found
from fp8debug.analysis.checkpoint.convention.naming import Tail
from fp8debug.analysis.checkpoint.convention.reading import Reading, convention_of, read_as
from fp8debug.analysis.checkpoint.convention.unexplained import is_plain, is_unexplained
from fp8debug.analysis.checkpoint.dialects import LEVELS, Dialect, Sign, dialect_named, dialects
from fp8debug.analysis.checkpoint.records import Convention
from fp8debug.analysis.checkpoint.store import Store
from fp8debug.errors import UsageError, escape

Signs = dict[str, list[tuple[str, str]]]
"""Dialect -> the signs of it: level, and what was seen."""


def read_convention(store: Store, dialect: str | None = None) -> Convention:
    """Say how the tensors of a checkpoint are read.

    Args:
        store: the checkpoint.
        dialect: name of the dialect; None: recognised.

    Raises:
        UsageError: there is no such dialect, or several readings fit; the message says what would settle it.
    """
    if dialect is not None:
        return convention_of(read_as(store, dialect_named(dialect)), f"--as {dialect}", store)
    signs = {name: seen for name, one in dialects().items() if (seen := list(_seen(store, one)))}
    if not signs:
        return _unquantised(store)
    level = max((LEVELS.index(level) for seen in signs.values() for level, _ in seen), default=0)
    candidates = [name for name, seen in signs.items() if any(LEVELS.index(one) == level for one, _ in seen)]
    readings = [read_as(store, dialects()[name]) for name in candidates]
    most = max(one.n_explained for one in readings)
    best = [one for one in readings if one.n_explained == most]
    _refuse_if_they_differ(best)
    return convention_of(best[0], "; ".join(words for _, words in signs[best[0].dialect.name]), store)


def _seen(store: Store, dialect: Dialect) -> Iterator[tuple[str, str]]:
    """Level and words of each sign of the dialect that the checkpoint shows."""
    for sign in dialect.signs:
        if words := _words_of(store, sign):
            yield sign.level, words


def _words_of(store: Store, sign: Sign) -> str:
    if sign.config:
        for where, value in found(store.configs, sign.config):
            if not sign.equals or str(value).lower() in sign.equals:
                return f"{where} is {escape(str(value))[:60]}"
    elif sign.metadata:
        if sign.contains in store.metadata.get(sign.metadata, ""):
            return f"the header's text {sign.metadata} speaks of it"
    else:
        tail = Tail(sign.tail)
        n = sum(
            tail.key(one.name) is not None and (not sign.dtypes or one.dtype in sign.dtypes)
            for one in store.tensors.values()
        )
        return f"{n:,} tensors end in {sign.tail.replace('{param}', '')}" if n else ""
    return ""


def _unquantised(store: Store) -> Convention:
    rest = list(store.tensors.values())
    dtypes = Counter(one.dtype for one in rest)
    return Convention(
        None, "high precision", f"no tensor holds codes of a quantised weight: {', '.join(sorted(dtypes))}", (),
        plain=tuple(one.name for one in rest if is_plain(one)),
        unknown=tuple(one.name for one in rest if is_unexplained(one)),
    )  # fmt: skip


def _refuse_if_they_differ(readings: list[Reading]) -> None:
    first = readings[0]
    for other in readings[1:]:
        if other.quantised != first.quantised:
            raise UsageError(
                f"the checkpoint can be read as {first.dialect.name} and as {other.dialect.name}, and not alike; "
                f"say which with --as {first.dialect.name} or --as {other.dialect.name}, or put the configuration "
                "beside it that says how it was quantised"
            )
