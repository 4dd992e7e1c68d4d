"""One line of block characters that shows how a number went over the steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS = "_.:-=+*#"
GAP = "·"
ASCII_GAP = " "


def sparkline(
    values: Sequence[float | None],
    *,
    low: float,
    high: float,
    width: int,
    worst: Callable[[Sequence[float]], float] = min,
    ascii_only: bool = False,
) -> str:
    """Draw `values`, in order, in at most `width` characters.

    `low` and `high` are drawn as the lowest and the highest block; what lies beyond them is drawn as the limit.
    Where several values share a character the `worst` one is drawn, so that a single bad step is never averaged
    away. A place without a finite value is a gap mark.
    """
    blocks, gap = (ASCII_BLOCKS, ASCII_GAP) if ascii_only else (BLOCKS, GAP)
    return "".join(
        gap if value is None else blocks[_level(value, low, high, len(blocks))]
        for value in bucketed(values, width, worst)
    )


def bucketed(
    values: Sequence[float | None], width: int, worst: Callable[[Sequence[float]], float]
) -> list[float | None]:
    """Reduce `values` to at most `width` neighbouring groups of almost equal size, each the `worst` of its group."""
    groups = min(width, len(values))
    result: list[float | None] = []
    for group in range(groups):
        start, stop = group * len(values) // groups, (group + 1) * len(values) // groups
        known = [value for value in values[start:stop] if value is not None and math.isfinite(value)]
        result.append(worst(known) if known else None)
    return result


def _level(value: float, low: float, high: float, levels: int) -> int:
    if high <= low:
        return 0
    share = (value - low) / (high - low)
    return min(levels - 1, max(0, int(share * levels)))
