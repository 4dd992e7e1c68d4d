"""The layers of a run over its ranks: under pipeline parallelism every rank has others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fp8debug.rundir import LayerInfo, Manifest, RankInfo


@dataclass(frozen=True, slots=True)
class RankedLayer:
    """A layer and the ranks that have it."""

    info: LayerInfo
    """As the lowest of them has it; matched when it is matched on any."""
    ranks: tuple[int, ...] | None
    """None where ranks did not say."""


def merged_layers(manifest: Manifest, ranks: Sequence[RankInfo]) -> tuple[RankedLayer, ...]:
    """One entry a name, in the order of the manifest, then of the ranks."""
    found = {layer.name: RankedLayer(layer, None) for layer in manifest.layers}
    for rank in sorted(ranks, key=lambda info: info.rank):
        for layer in rank.layers:
            known = found.get(layer.name)
            if known is None:
                found[layer.name] = RankedLayer(layer, (rank.rank,))
                continue
            info = replace(known.info, matched=known.info.matched or layer.matched)
            found[layer.name] = RankedLayer(info, tuple(sorted({*(known.ranks or ()), rank.rank})))
    return tuple(found.values())
