"""The signals of practice in a pair of curves: a spike, a rise or divergence, a gap that stays, lower benchmarks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fp8debug.analysis.compare.curve import Curve
from fp8debug.analysis.compare.gap import Gap
from fp8debug.analysis.compare.scores import Scores
from fp8debug.analysis.compare.spikes import Band, Spike, band_of, find_spikes, first_anomaly

EVENT_STEPS = 5
"""A loss follows a gradient norm within so many steps."""
SERIES = ("loss", "grad_norm")
HIGHER = 2.0
"""A spike this many times as far out as the baseline's own is one more, however many the baseline has."""


@dataclass(frozen=True, slots=True)
class Signals:
    """What the curves show."""

    kinds: tuple[str, ...]
    """Of divergence, spike, gap, lower_benchmarks; none of them: empty."""
    spikes: tuple[Spike, ...]
    """Of the run, loss before gradient norm, in order."""
    baseline_spikes: tuple[Spike, ...]
    own: tuple[Spike, ...]
    """Those of the run that the baseline neither shares nor has the like of."""
    first_anomaly: Spike | None
    """The earliest of `own`."""
    n_events: int
    """Stretches of steps that `own` is about: loss and gradient norm of one fault are one."""
    ends_badly: str | None
    """How the run ends, where that is NaN or a loss that never came back."""
    baseline_ends_badly: str | None
    is_from_start: bool
    """The divergence or gap is there from the first steps."""


def signals_of(baseline: Curve, run: Curve, gap: Gap, scores: Scores) -> Signals:
    """Read the signals off two curves."""
    bands = {name: (band_of(baseline, name), band_of(run, name)) for name in SERIES}
    ours = tuple(spike for name, (base, other) in bands.items() for spike in _spikes(base, name, other))
    theirs = tuple(spike for name, (base, other) in bands.items() for spike in _spikes(other, name, base))
    own = _own(theirs, ours)
    end, baseline_end = _end(run, own), _end(baseline, ours)
    kinds = []
    if (end is not None and (baseline_end is None or own)) or (gap.kind == "growing" and not gap.is_usual):
        kinds.append("divergence")
    if any(spike.recovered_step is not None for spike in own):
        kinds.append("spike")
    if gap.kind == "persistent" and not gap.is_usual:
        kinds.append("gap")
    if scores.lagging:
        kinds.append("lower_benchmarks")
    first = first_anomaly(own)
    return Signals(
        kinds=tuple(kinds),
        spikes=theirs,
        baseline_spikes=ours,
        own=own,
        first_anomaly=first,
        n_events=_events(own),
        ends_badly=end,
        baseline_ends_badly=baseline_end,
        is_from_start=_is_from_start(run, gap, kinds, first),
    )


def _spikes(band: Band | None, series: str, other: Band | None) -> tuple[Spike, ...]:
    return () if band is None else find_spikes(band, series, other)


def _own(theirs: Sequence[Spike], ours: Sequence[Spike]) -> tuple[Spike, ...]:
    """Spikes that tell of a fault: in series whose noise throws spikes on both sides, only more or higher ones do."""
    found: list[Spike] = []
    for series in SERIES:
        mine = [spike for spike in theirs if spike.series == series and spike.is_unique is not False]
        natural = [spike for spike in ours if spike.series == series and spike.is_unique is not False]
        highest = max((spike.excess for spike in natural), default=0.0)
        is_more = len(mine) > len(natural) + 2 * math.sqrt(len(natural))
        found += [
            spike
            for spike in mine
            if is_more or spike.excess > HIGHER * highest or (spike.n_nonfinite and math.isfinite(highest))
        ]
    return tuple(found)


def _events(spikes: Sequence[Spike]) -> int:
    n_events, end = 0, -math.inf
    for spike in sorted(spikes, key=lambda one: one.first_step):
        n_events += spike.first_step > end
        end = max(end, spike.first_step + spike.n_steps + EVENT_STEPS)
    return n_events


def _end(curve: Curve, spikes: Sequence[Spike]) -> str | None:
    """How a curve ends, if badly."""
    if not math.isfinite(curve.loss[-1]):
        since = int(curve.steps[_first_of_last_nonfinite(curve)])
        return f"the loss is NaN or infinite from step {since} on"
    rise = next((spike for spike in spikes if spike.series == "loss" and spike.recovered_step is None), None)
    if rise is not None and rise.n_steps > 1:
        return f"the loss rose at step {rise.first_step} and never came back"
    return None


def _first_of_last_nonfinite(curve: Curve) -> int:
    finite = [place for place in range(len(curve)) if math.isfinite(curve.loss[place])]
    return finite[-1] + 1 if finite else 0


def _is_from_start(run: Curve, gap: Gap, kinds: Sequence[str], first: Spike | None) -> bool:
    if not {"divergence", "gap"} & set(kinds):
        return False
    early = run.steps[min(len(run) - 1, max(4, len(run) // 20))]
    return gap.is_from_start or ("divergence" in kinds and first is not None and first.first_step <= int(early))
