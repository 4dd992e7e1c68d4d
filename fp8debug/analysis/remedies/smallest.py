"""Which layers to take out of low precision: the fewest that reach a target, or the best that a budget pays for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_MOST_POINTS = 50_000
"""Sets that are compared at once before the search settles for the best found."""

_ROUNDING = 1e-9
"""Of sums of FLOPs: what a budget pays for exactly is within it."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one layer adds to the whole."""

    layer: str
    flops: float
    """Of its GEMMs."""
    noise: float
    """Noise of its results over their signal, weighted with its FLOPs."""


def fewest_layers(shares: Sequence[Share], target_nsr: float) -> tuple[tuple[Share, ...], bool]:
    """The smallest set without which noise / FLOPs of the whole is at most `target_nsr`, and whether it is.

    Every layer counts one, so the noisiest first gives the smallest set; of equally noisy ones the cheaper goes.
    """
    total = math.fsum(share.flops for share in shares)
    ordered = sorted(shares, key=lambda share: (-share.noise, share.flops, share.layer))
    taken = 0
    while _noise(ordered[taken:]) > target_nsr * total and taken < len(ordered) and ordered[taken].noise > 0:
        taken += 1
    return tuple(ordered[:taken]), _noise(ordered[taken:]) <= target_nsr * total


def best_within(shares: Sequence[Share], flops: float) -> tuple[tuple[Share, ...], bool]:
    """The set that takes most noise away for at most `flops`, and whether that is certain.

    A knapsack: all sets that no other one beats in both are kept while the layers are gone through (Nemhauser and
    Ullmann, 1969). Few distinct sizes of layers keep that list short; where it grows beyond bounds the best of what is
    kept stands.
    """
    limit = flops * (1 + _ROUNDING)
    useful = [share for share in shares if share.noise > 0 and share.flops <= limit]
    useful.sort(key=lambda share: (-share.noise / max(share.flops, 1.0), share.layer))
    points: list[tuple[float, float, tuple[int, ...]]] = [(0.0, 0.0, ())]  # cost, noise taken away, which
    is_exact = True
    for number, share in enumerate(useful):
        more = [
            (cost + share.flops, gone + share.noise, (*which, number))
            for cost, gone, which in points
            if cost + share.flops <= limit
        ]
        points = _unbeaten([*points, *more])
        if len(points) > _MOST_POINTS:
            points, is_exact = points[:: len(points) // _MOST_POINTS + 1] + points[-1:], False
    best = max(points, key=lambda point: (point[1], -point[0], -len(point[2])))
    chosen = sorted((useful[number] for number in best[2]), key=lambda share: (-share.noise, share.layer))
    return tuple(chosen), is_exact


def _unbeaten(points: list[tuple[float, float, tuple[int, ...]]]) -> list[tuple[float, float, tuple[int, ...]]]:
    kept: list[tuple[float, float, tuple[int, ...]]] = []
    for point in sorted(points, key=lambda point: (point[0], -point[1], len(point[2]))):
        if not kept or point[1] > kept[-1][1]:
            kept.append(point)
    return kept


def _noise(shares: Sequence[Share]) -> float:
    return math.fsum(share.noise for share in shares)
