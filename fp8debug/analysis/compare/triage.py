"""Which tensors left their own band at or before the first anomalous step of a run."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from fp8debug.analysis.compare.levels import robust_deviation
from fp8debug.analysis.run import Run, open_run
from fp8debug.rundir import LayerInfo
from fp8debug.storage import RunPath

LOOKBACK, MAX_LOOKBACK = 20, 200
"""Steps before the anomaly in which a departure is taken for its forerunner: 5 % of the run, within these."""
HISTORY = 64
"""Records before one that make its band."""
MIN_HISTORY = 8
REACH = 6.0

# Least departure that counts, and what counts where there are fewer than MIN_HISTORY records: in bits or dB.
_LEAST = {"amax": (1.0, math.log2(3.0)), "scale_gap_bits": (0.5, math.log2(3.0)), "db_lost": (3.0, 6.0)}

_AMAX = """
select layer, tensor, step, min(seq) as seq, max(amax)::double as value, bool_or(n_nan + n_posinf + n_neginf > 0) as bad
from tensors
where step between $first and $step and is_judged_pass(pass)
group by layer, tensor, step
qualify row_number() over (partition by layer, tensor order by step desc) <= $most
order by layer, tensor, step
"""
# What the framework used, or the emulation, tells more than what a simulation beside it would have used.
_EVIDENCE = """
with ranked as (
    select *, case
        when source <> 'simulated' then 0 when recipe = $emulated then 1 when recipe = 'current' then 2 else 3
    end as place
    from evidence
    where not alternate and step <= $step and (series = 'sampled' or step >= $since)
),
chosen as (select * from ranked qualify place = min(place) over (partition by layer, tensor))
select
    layer, tensor, recipe, case when recipe = $emulated then 'emulated' else source end as source, step,
    min(seq) as seq, max(scale_gap_bits)::double as gap, max(db_lost)::double as lost,
    bool_or(hit_sqnr or hit_gain or hit_gap or hit_underflow) as hit
from chosen
group by layer, tensor, recipe, source, step
qualify row_number() over (partition by layer, tensor, recipe order by step desc) <= $most
order by layer, tensor, recipe, step
"""


@dataclass(frozen=True, slots=True)
class Departure:
    """One operand that left its band."""

    layer: str
    tensor: str
    measure: str
    """nonfinite | amax | scale_gap_bits | db_lost: below a healthy SQNR | unhealthy: so at every step looked at"""
    recipe: str | None
    """Whose scale it is about; None: it is about the values themselves."""
    source: str | None
    """framework | payload | emulated | simulated: beside what the training really did"""
    step: int
    seq: int
    """Order of observation: of departures at one step the first is nearest to the cause."""
    value: float | None
    usual: float | None
    """Median of its own records before; None: there were none."""


@dataclass(frozen=True, slots=True)
class Triage:
    """What the tensors say about the first anomaly."""

    status: str
    """named | nothing_left | not_recorded | no_anomaly | not_comparable"""
    step: int | None = None
    """The anomaly, or the step since which the gap is there."""
    first_step: int | None = None
    """Departures were looked for from here on."""
    n_operands: int = 0
    n_departed: int = 0
    departures: tuple[Departure, ...] = ()
    """By first departure, then by order of execution; one an operand."""
    capture_layers: tuple[str, ...] = ()
    """Layers whose capture would give evidence; empty where not even their names are known."""


@dataclass(frozen=True, slots=True)
class _Point:
    step: int
    seq: int
    value: float


_Key = tuple[str, str, str, str | None, str | None]
_Seen = tuple[str, str, int, int, float | None, bool | None]
_Judged = tuple[str, str, str, str, int, int, float | None, float | None, bool]


def triage(run_path: RunPath, step: int, n_steps: int, top: int = 10) -> Triage:
    """Look at the tensors of a run up to the step of an anomaly.

    Args:
        run_path: the run directory.
        step: the first anomalous step.
        n_steps: length of the run.
        top: most departures to give.

    Raises:
        Fp8DebugError: the run cannot be read.
    """
    first = step - min(MAX_LOOKBACK, max(LOOKBACK, n_steps // 20))
    with open_run(run_path) as run:
        n_operands, departures = departures_before(run, step, first)
        if not n_operands:
            return Triage("not_recorded", step, capture_layers=_layers(run))
    status = "named" if departures else "nothing_left"
    return Triage(status, step, max(0, first), n_operands, len(departures), departures[:top])


def departures_before(
    run: Run, step: int, first: int, first_known: int | None = None
) -> tuple[int, tuple[Departure, ...]]:
    """The operands that left their own band from step `first` on, up to `step`.

    Args:
        run: an open run.
        step: the last step looked at.
        first: the first step in which a departure counts.
        first_known: amaxes before this step make no band; None: all do.

    Returns:
        How many operands were looked at, 0 where none was recorded in these steps; and by first departure, then by
        order of execution, one an operand.
    """
    most = HISTORY + MAX_LOOKBACK
    rows = run.sql(_AMAX, step=step, first=0 if first_known is None else first_known, most=most).fetchall()
    if not any(seen >= first for _, _, seen, *_ in rows):
        return 0, ()
    found = list(_nonfinite(rows, first))
    evidence = run.sql(_EVIDENCE, step=step, since=first - HISTORY, most=most, emulated=_emulated(run)).fetchall()
    for key, points in [*_amaxes(rows).items(), *_errors(evidence).items()]:
        departure = _departure(key, points, first)
        if departure is not None:
            found.append(departure)
    found += _unhealthy(evidence, first)
    return len({(layer, tensor) for layer, tensor, *_ in rows}), _first_of_each(found)


def _nonfinite(rows: Iterable[_Seen], first: int) -> Iterator[Departure]:
    for layer, tensor, step, seq, _, bad in rows:
        if bad and step >= first:
            yield Departure(layer, tensor, "nonfinite", None, None, step, seq, None, None)


def _amaxes(rows: Iterable[_Seen]) -> Mapping[_Key, list[_Point]]:
    series: dict[_Key, list[_Point]] = defaultdict(list)
    for layer, tensor, step, seq, value, _ in rows:
        if value is not None and value > 0:
            series[layer, tensor, "amax", None, None].append(_Point(step, seq, math.log2(value)))
    return series


def _errors(evidence: Iterable[_Judged]) -> Mapping[_Key, list[_Point]]:
    """Scale gaps, and dB below a healthy SQNR: in both, up is worse."""
    series: dict[_Key, list[_Point]] = defaultdict(list)
    for layer, tensor, recipe, source, step, seq, gap, lost, _ in evidence:
        if gap is not None:
            series[layer, tensor, "scale_gap_bits", recipe, source].append(_Point(step, seq, gap))
        if lost is not None:
            series[layer, tensor, "db_lost", recipe, source].append(_Point(step, seq, lost))
    return series


def _departure(key: _Key, points: list[_Point], first: int) -> Departure | None:
    """The first point from step `first` on that lies above the band of the points before it."""
    layer, tensor, measure, recipe, source = key
    values = np.array([point.value for point in points])
    least = values.min() + _LEAST[measure][0]
    for place, point in enumerate(points):
        if point.step < first or place == 0 or point.value <= least:
            continue
        before = values[max(0, place - HISTORY) : place]
        usual = float(np.median(before))
        if point.value - usual <= _reach(measure, before):
            continue
        # A scale below the ideal one clips nothing, and an SQNR near the healthy one is fine, whatever it was before.
        if measure != "amax" and point.value <= _LEAST[measure][0]:
            continue
        return Departure(
            layer, tensor, measure, recipe, source, point.step, point.seq,
            _shown(measure, point.value), _shown(measure, usual),
        )  # fmt: skip
    return None


def _reach(measure: str, before: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    least, short = _LEAST[measure]
    if before.size < MIN_HISTORY:
        return short
    return max(least, REACH * (1 + MIN_HISTORY / before.size) * robust_deviation(before))


def _shown(measure: str, value: float) -> float:
    return 2.0**value if measure == "amax" else value


def _unhealthy(evidence: Iterable[_Judged], first: int) -> Iterator[Departure]:
    """Operands beyond the limits of the candidate rule at every step looked at: they have no band to leave."""
    by_operand: dict[tuple[str, str, str, str], list[tuple[int, int, float | None, bool]]] = defaultdict(list)
    for layer, tensor, recipe, source, step, seq, _, lost, hit in evidence:
        if step >= first:
            by_operand[layer, tensor, recipe, source].append((step, seq, lost, hit))
    for (layer, tensor, recipe, source), rows in by_operand.items():
        if all(hit for _, _, _, hit in rows):
            step, seq, lost, _ = rows[0]
            yield Departure(layer, tensor, "unhealthy", recipe, source, step, seq, lost, None)


def _first_of_each(found: Iterable[Departure]) -> tuple[Departure, ...]:
    """One an operand, its first; of several at one step what was not finite, then its order in the table above."""
    order = ("nonfinite", "scale_gap_bits", "db_lost", "amax", "unhealthy")
    chosen: dict[tuple[str, str], Departure] = {}
    for departure in sorted(found, key=lambda one: (one.step, one.seq, order.index(one.measure))):
        chosen.setdefault((departure.layer, departure.tensor), departure)
    return tuple(chosen.values())


def _emulated(run: Run) -> str:
    """Recipe that most layers computed with; empty: none was emulated."""
    texts = Counter(text.partition(", ")[0] for layer in run.layers if (text := layer.info.emulated) is not None)
    return texts.most_common(1)[0][0] if texts else ""


def _layers(run: Run) -> tuple[str, ...]:
    infos: Iterable[LayerInfo] = (layer.info for layer in run.layers)
    return tuple(info.name for info in infos)
