"""Scales have the shape that blocks of their codes give, the right way round, and are what the configuration says."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from fp8debug.analysis.checkpoint.checks.hit import Hit, Subject
from fp8debug.analysis.checkpoint.checks.names import starred
from fp8debug.analysis.checkpoint.convention.configuration import stated_in
from fp8debug.analysis.checkpoint.dialects.loading import dialects
from fp8debug.analysis.checkpoint.records import CheckPlace, Quantised, Scale

Block = tuple[int, int]
_FEWEST_ALIKE = 3
_SHARE_ALIKE = 0.75


def shape(subject: Subject) -> Iterator[Hit]:
    """Grids that do not fit, stand the other way round, are of another block than configured, or end in part of one."""
    yield from _misfits(subject)
    stated = _stated_blocks(subject)
    partial: dict[tuple[str, str], list[Quantised]] = defaultdict(list)
    for one in subject.convention.quantised:
        for scale in one.scales:
            if scale.layout == "block" and scale.block is not None:
                yield from _block(subject, one, scale, stated)
                if left := _left_over(one, scale.block):
                    partial[starred(one.name)[0], left].append(one)
    for (_, left), ones in partial.items():
        such = f" and {len(ones) - 1:,} like it" if len(ones) > 1 else ""
        place = CheckPlace(ones[0].name, f"{ones[0].name}{such}: the last block has {left}.", numbers={"n": len(ones)})
        yield Hit("block_partial", place, weight=len(ones))
    yield from _other_encodings(subject)


def _misfits(subject: Subject) -> Iterator[Hit]:
    shapes = {one.name: one.shape for one in subject.convention.quantised}
    for misfit in subject.convention.misfits:
        expected = " or ".join(str(list(fits)) for fits in misfit.expected)
        wanted = f", expected {expected}" if expected else ""
        place = CheckPlace(
            misfit.tensor,
            f"{misfit.scale} {list(misfit.shape)} for {misfit.tensor} {list(shapes.get(misfit.tensor, ()))}{wanted}. "
            f"{misfit.message}",
            numbers={"scale": misfit.scale, "shape": str(list(misfit.shape)), "expected": expected or None},
            brief=f"{list(misfit.shape)}{wanted}",
        )
        yield Hit("scale_misfit", place, of=len(subject.convention.quantised))


def _block(subject: Subject, one: Quantised, scale: Scale, stated: frozenset[Block]) -> Iterator[Hit]:
    assert scale.block is not None
    n = len(subject.convention.quantised)
    lines, length = _matrix(one)
    words = f"{scale.block[0]} x {scale.block[1]}"
    if scale.is_transposed:
        wanted = [-(-lines // scale.block[0]), -(-length // scale.block[1])]
        told = f"blocks of {words} of {lines} x {length} give {wanted}"
        place = CheckPlace(
            one.name,
            f"{scale.name} {list(scale.shape)} is stored columns first: {told}.",
            brief=f"{list(scale.shape)} instead of {wanted}",
        )
        yield Hit("grid_transposed", place, of=n, weight=one.n)
    if stated and scale.block not in stated and one.fmt != "E2M1" and scale.kind == "weight":
        configured = " or ".join(f"{lines} x {columns}" for lines, columns in sorted(stated))
        place = CheckPlace(
            one.name,
            f"{scale.name} {list(scale.shape)} has blocks of {words}, and {subject.convention.block_from} says "
            f"{configured}.",
            brief=f"blocks of {words}",
        )
        yield Hit("block_not_as_configured", place, of=n, weight=one.n)


def _stated_blocks(subject: Subject) -> frozenset[Block]:
    """All that configurations state: a checkpoint may have several schemes."""
    dialect = dialects().get(subject.convention.dialect or "")
    stated = () if dialect is None else stated_in(subject.store.configs, dialect).blocks
    return frozenset(stated) | ({subject.convention.block} if subject.convention.block else set())


def _left_over(one: Quantised, block: Block) -> str:
    """What the last blocks hold where that is not a whole one; empty: they are whole."""
    axes = zip(("lines", "columns"), _matrix(one), block, strict=True)
    return " and ".join(f"{size % whole} of {whole} {axis} ({size})" for axis, size, whole in axes if size % whole)


def _matrix(one: Quantised) -> tuple[int, int]:
    return (one.shape[-2] if len(one.shape) > 1 else 1), one.length


def _other_encodings(subject: Subject) -> Iterator[Hit]:
    """A few scales of another dtype than their siblings: rounded on their way."""
    groups: dict[str, list[Scale]] = defaultdict(list)
    for one in subject.convention.quantised:
        for scale in one.scales:
            groups[starred(scale.name)[0]].append(scale)
    for scales in groups.values():
        usual, n = Counter(scale.encoding for scale in scales).most_common(1)[0]
        if n < max(_FEWEST_ALIKE, _SHARE_ALIKE * len(scales)):
            continue
        for scale in scales:
            if scale.encoding != usual:
                message = f"{scale.name} is {scale.encoding}, {n:,} of {len(scales):,} of its kind are {usual}."
                yield Hit("scale_dtype", CheckPlace(scale.name, message), of=len(scales))
