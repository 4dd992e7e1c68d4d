"""The part of a large run from which a page works out what other recipes would do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fp8debug.analysis.report import Report
    from fp8debug.analysis.run import Run

MOST_HISTOGRAMS = 1200
"""Thousands of rows each are read under every recipe."""
MOST_PASSES = 120_000
"""Histories are replayed over all recorded passes of the layers."""

_COUNTED = """
select layer, step, count(*)
from tensors
semi join (select segment, rank, seq from stored.histograms where counted = 'high') using (segment, rank, seq)
where sampled and is_judged_pass(pass)
group by layer, step
order by step, layer
"""
_PASSES = "select layer, count(*) from tensors group by layer"


@dataclass(frozen=True, slots=True)
class Part:
    """Layers and steps with counted values, all or some."""

    layers: tuple[str, ...]
    steps: tuple[int, ...]
    note: str
    """What was left out; empty where nothing was."""
    has_all_layers: bool
    """All that were recorded, counted or not."""

    @property
    def pattern(self) -> str | None:
        """A regex for the layers; None: all."""
        return None if self.has_all_layers else f"^(?:{'|'.join(map(re.escape, self.layers))})$"


def part_of(run: Run, report: Report) -> Part:
    """A part that a page can afford; no steps where no values were counted.

    Layers of findings and candidates come first, then others spread evenly over the names; steps are spread evenly
    over the run and end with the last.
    """
    counted = run.sql(_COUNTED).fetchall()
    passes = dict(run.sql(_PASSES).fetchall())
    known = list(dict.fromkeys(layer for layer, _, _ in counted))
    told = [suspect.layer for suspect in report.candidates]
    told += [place.layer for finding in report.findings for place in finding.places if place.layer is not None]
    first = [layer for layer in dict.fromkeys(told) if layer in set(known)]
    others = [layer for layer in known if layer not in set(first)]
    layers = _affordable([*first, *(others[place] for place in _spread_order(len(others)))], passes)
    kept = set(layers)
    counts: dict[int, int] = {}
    for layer, step, n in counted:
        if layer in kept:
            counts[step] = counts.get(step, 0) + n
    steps = chosen_steps(counts)
    parts = [] if len(layers) == len(known) else [f"{len(layers):,} of {len(known):,} layers"]
    parts += [] if len(steps) == len(counts) else [f"{len(steps)} of {len(counts):,} steps with counted values"]
    note = f"What other recipes would do is worked out from {' and '.join(parts)}" if parts else ""
    return Part(tuple(layers), steps, note, len(layers) == len(passes))


def chosen_steps(counts: dict[int, int]) -> tuple[int, ...]:
    """Of steps with so many histograms each, as many as are affordable, spread evenly and the last among them."""
    known = sorted(counts)
    if not known:
        return ()
    n_steps = min(len(known), max(1, MOST_HISTOGRAMS // max(counts.values())))
    places = {len(known) - 1 - round(i * (len(known) - 1) / max(1, n_steps - 1)) for i in range(n_steps)}
    return tuple(known[place] for place in sorted(places))


def _affordable(layers: Sequence[str], passes: dict[str, int]) -> list[str]:
    kept: list[str] = []
    n_passes = 0
    for layer in layers:
        n_passes += passes[layer]
        if kept and n_passes > MOST_PASSES:
            break
        kept.append(layer)
    return kept


def _spread_order(n: int) -> list[int]:
    """Places 0 to n - 1 such that any first few of them are spread over all: 0, 4, 2, 6, 1, 5, 3, 7."""
    n_bits = max(1, n - 1).bit_length()
    mirrored = (int(f"{place:0{n_bits}b}"[::-1], 2) for place in range(2**n_bits))
    return [place for place in mirrored if place < n]
