"""Which dialect a checkpoint is written in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fp8debug.analysis.checkpoint.convention.reading import Reading, convention_of, read_as
from fp8debug.analysis.checkpoint.convention.refusing import (
    refuse_if_unexplained,
    refuse_if_unreadable,
    refuse_unless_alike,
)
from fp8debug.analysis.checkpoint.convention.remarks import remarks
from fp8debug.analysis.checkpoint.convention.signs import Signs
from fp8debug.analysis.checkpoint.convention.unexplained import is_plain, is_unexplained
from fp8debug.analysis.checkpoint.dialects import LEVELS, dialect_named, dialects
from fp8debug.analysis.checkpoint.records import Assumption, Convention
from fp8debug.analysis.checkpoint.store import Store

_STATED = LEVELS.index("config")
_TOLD = LEVELS.index("metadata")
_Seen = Mapping[str, list[tuple[int, str]]]
"""Dialect -> level and words of each of its signs."""


@dataclass(frozen=True, slots=True)
class _Recognised:
    reading: Reading
    why: str
    remarks: tuple[Assumption, ...] = ()


def read_convention(store: Store, dialect: str | None = None) -> Convention:
    """Say how the tensors of a checkpoint are read.

    Args:
        store: the checkpoint.
        dialect: name of the dialect; None: recognised.

    Raises:
        UsageError: there is no such dialect, or several readings fit; the message says what would settle it.
    """
    if dialect is not None:
        recognised: _Recognised | None = _Recognised(read_as(store, dialect_named(dialect)), f"--as {dialect}")
    else:
        recognised = _recognised(store)
    if recognised is None:
        return _unquantised(store)
    reading = recognised.reading
    refuse_if_unreadable(reading)
    convention = convention_of(reading, recognised.why)
    more = (*recognised.remarks, *remarks(store, reading, is_asked_for=dialect is not None))
    return replace(convention, assumptions=(*convention.assumptions, *more))


def _recognised(store: Store) -> _Recognised | None:
    """The dialect that is written most clearly; None: nothing is quantised."""
    signs = Signs(store)
    seen = {name: words for name, one in dialects().items() if (words := signs.seen(one))}
    stated = [name for name, words in seen.items() if any(level == _STATED for level, _ in words)]
    shown = [name for name in seen if name not in stated]
    best = _best(store, stated)
    other = _best(store, shown) if not best or best[0].n_scaled == 0 else []
    # A configuration is a statement. Names overrule it where it leaves all codes without a scale, and they do not.
    is_overruled = bool(best and other and other[0].n_scaled > best[0].n_scaled)
    chosen = _told_by_header(other, seen) if is_overruled or not best else best
    if not chosen or (not stated and not _finds_anything(chosen[0])):
        return None
    refuse_unless_alike(chosen)
    chosen = sorted(chosen, key=lambda one: -len(seen[one.dialect.name]))
    reading = chosen[0]
    if not stated:
        refuse_if_unexplained(store, reading)
    why = "; ".join(words for _, words in seen[reading.dialect.name])
    if is_overruled:
        return _Recognised(reading, why, (_overruled(best[0], reading, seen),))
    return _Recognised(reading, why, _alike(chosen) if not stated else ())


def _best(store: Store, names: Sequence[str]) -> list[Reading]:
    """Readings of those dialects that explain most; of lower rank first."""
    readings = [read_as(store, dialects()[name]) for name in names]
    # Codes count last: one dialect may have no word for them, where another knows that they lack their scales.
    scores = [(one.n_scaled, one.n_explained, len(one.quantised)) for one in readings]
    best = [one for one, score in zip(readings, scores, strict=True) if score == max(scores)]
    return [one for one in best if not one.dialect.is_generic] or best


def _told_by_header(readings: Sequence[Reading], seen: _Seen) -> list[Reading]:
    """Of those that explain equally much the ones that a text of the header speaks for; all where there is none."""
    told = [one for one in readings if any(level == _TOLD for level, _ in seen[one.dialect.name])]
    return told or list(readings)


def _finds_anything(reading: Reading) -> bool:
    return bool(reading.quantised or reading.sorted.others or reading.sorted.orphans)


def _overruled(stated: Reading, read: Reading, seen: _Seen) -> Assumption:
    words = next(words for level, words in seen[stated.dialect.name] if level == _STATED)
    return Assumption(
        "checkpoint",
        f"{words}, and read so no code would have a scale; taken as {read.dialect.title}, as the names of "
        f"{read.n_scaled:,} tensors have it",
    )


def _alike(readings: Sequence[Reading]) -> tuple[Assumption, ...]:
    """That others are read in the same way."""
    if len(readings) == 1 or not readings[0].n_scaled:
        return ()
    others = " or ".join(one.dialect.title for one in readings[1:])
    return (
        Assumption(
            "checkpoint", f"taken as {readings[0].dialect.title}; {others} would be read in the same way"
        ),
    )  # fmt: skip


def _unquantised(store: Store) -> Convention:
    rest = list(store.tensors.values())
    dtypes = ", ".join(sorted({one.dtype for one in rest})) or "none"
    plain = tuple(one.name for one in rest if is_plain(one))
    unknown = tuple(one.name for one in rest if is_unexplained(one))
    title = "high precision" if set(unknown) <= set(plain) else "no dialect that is known"
    why = f"no tensor holds codes that a dialect explains; dtypes: {dtypes}"
    return Convention(None, title, why, (), plain=plain, unknown=unknown)
