"""Whether tensor parallelism cuts blocks that share a scale."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fp8debug.analysis.checkpoint.checks.consumer import consumer_named
from fp8debug.analysis.checkpoint.checks.hit import Hit, Subject
from fp8debug.analysis.checkpoint.checks.names import starred
from fp8debug.analysis.checkpoint.checks.roles import Heads, Section, cut_of, heads_of, sections
from fp8debug.analysis.checkpoint.records import CheckPlace, Quantised, Scale
from fp8debug.errors import UsageError

_SHOWN_SHARDS = 4


@dataclass(frozen=True, slots=True)
class Cut:
    """An axis of a tensor, or a section of it, that is spread over ranks."""

    axis: str
    """lines | columns"""
    section: Section
    block: int
    """Lines or columns that share a scale."""
    is_guess: bool
    """Whether nobody knows from the name that this axis is cut."""


def checked_tp(tp: Sequence[int]) -> tuple[int, ...]:
    """The sizes, each once.

    Raises:
        UsageError: one is no number of ranks.
    """
    for size in tp:
        if size < 1:
            raise UsageError(f"--tp {size}: got {size} ranks, expected a number of ranks of at least 1, such as --tp 8")
    return tuple(dict.fromkeys(tp))


def sharding(subject: Subject) -> Iterator[Hit]:
    """For every size that was asked for: which weights are cut within a block, or cannot be cut evenly."""
    is_demanded = subject.consumer is not None and consumer_named(subject.consumer).whole_blocks
    heads = heads_of(subject.store.configs)
    scaled = [(one, scale) for one in subject.convention.quantised if (scale := _block_scale(one)) is not None]
    for tp in checked_tp(subject.tp):
        groups: dict[tuple[str, Cut], list[Quantised]] = defaultdict(list)
        for one, scale in scaled:
            for cut in _cuts(one, scale, tp, heads):
                if (cut.section.size // cut.section.parts) % cut.block or cut.section.size % cut.section.parts:
                    groups[starred(one.name)[0], cut].append(one)
        for (_, cut), ones in groups.items():
            yield _hit(tp, cut, ones, "error" if is_demanded and not cut.is_guess else None)
        if scaled and not groups:
            yield _fits(tp, scaled)


def _block_scale(one: Quantised) -> Scale | None:
    scale = one.grid_scale
    return scale if scale is not None and scale.layout == "block" and scale.block is not None else None


def _cuts(one: Quantised, scale: Scale, tp: int, heads: Heads | None) -> Iterator[Cut]:
    assert scale.block is not None
    role = cut_of(one.module)
    lines = one.shape[-2] if len(one.shape) > 1 else 1
    if role in ("lines", "unknown"):
        for section in sections(one.module, lines, tp, heads):
            yield Cut("lines", section, scale.block[0], role == "unknown")
    if role in ("columns", "unknown"):
        yield Cut("columns", Section("", one.length, tp), scale.block[1], role == "unknown")


def _hit(tp: int, cut: Cut, ones: list[Quantised], severity: str | None) -> Hit:
    size, parts, block = cut.section.size, cut.section.parts, cut.block
    shard = None if size % parts else size // parts
    sizes = f"{size} {cut.axis}{' of ' + cut.section.name if cut.section.name else ''} / {parts}"
    if shard is None:
        told = brief = f"{sizes} is no whole number"
    else:
        told = f"{sizes} = {shard}, which is no multiple of the block of {block}: {_touched(shard, parts, block)}"
        brief = f"{sizes} = {shard}, blocks of {block}"
    guess = f"; its name does not tell how it is cut, this is for a cut of its {cut.axis}" if cut.is_guess else ""
    held = f"; each part is held by {tp // parts} ranks" if parts < tp and tp % parts == 0 else ""
    place = CheckPlace(
        ones[0].name,
        f"--tp {tp}: {_names(ones)}: {told}{held}{guess}.",
        numbers={
            "tp": tp, "axis": cut.axis, "size": size, "parts": parts, "shard": shard, "block": block, "n": len(ones),
        },
        brief=f"--tp {tp}, {len(ones):,} such: {brief}",
    )  # fmt: skip
    return Hit("shard_cuts_block", place, severity=severity or ("watch" if cut.is_guess else None), weight=len(ones))


def _touched(shard: int, parts: int, block: int) -> str:
    """Which blocks the first shards have."""
    spans = [(n * shard // block, ((n + 1) * shard - 1) // block) for n in range(min(parts, _SHOWN_SHARDS))]
    shown = [
        f"shard {n} has block {first}" if first == last else f"shard {n} has blocks {first}-{last}"
        for n, (first, last) in enumerate(spans)
    ]
    return ", ".join(shown) + (" and so on" if parts > _SHOWN_SHARDS else "")


def _names(ones: list[Quantised]) -> str:
    if len(ones) == 1:
        return ones[0].name
    return f"{len(ones):,} tensors {starred(ones[0].name)[0]}, the first {ones[0].name}"


def _fits(tp: int, scaled: list[tuple[Quantised, Scale]]) -> Hit:
    one, scale = scaled[0]
    assert scale.block is not None
    size = f"{scale.block[0]} x {scale.block[1]}"
    told = f"--tp {tp}: none of {len(scaled):,} block-scaled weights is cut within a block ({one.name}: {size})."
    return Hit("shard_keeps_blocks", CheckPlace(one.name, told, numbers={"tp": tp, "n": len(scaled)}))
