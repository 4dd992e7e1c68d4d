"""What a comparison says of one run, section by section: the verdict, then what it stands on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from fp8debug.analysis.compare import Gap, Pair
from fp8debug.analysis.compare.comparison import CurveFacts
from fp8debug.analysis.compare.gate import GateResult
from fp8debug.analysis.compare.names import NOTE
from fp8debug.analysis.compare.scores import Scores
from fp8debug.analysis.compare.sentences import departure_text
from fp8debug.analysis.compare.signals import Signals
from fp8debug.analysis.compare.spikes import Spike
from fp8debug.cli.render.sparkline import sparkline
from fp8debug.cli.render.stream import Looks
from fp8debug.cli.render.tables import columns, escape, named_columns, wrap
from fp8debug.cli.render.wording import count, listed, number, with_full_stop

_COLOURS = {"not_comparable": "yellow", "divergence": "red", "spike": "red", "gap": "red", "lower_benchmarks": "yellow",
            "not_enough_evidence": "yellow", "transient": "green", "none": "green"}  # fmt: skip
SCORE_HEADER = ("task", "baseline", "run", "difference", "")
GAP_HEADER = ("loss", "% of the baseline")
SPIKE_HEADER = ("of", "series", "step", "value", "before", "peak", "height", "recovery", "in both")
_SERIES = {"loss": "loss", "grad_norm": "gradient norm"}


def pair_sections(pair: Pair, looks: Looks, top: int) -> list[Iterator[str]]:
    """All sections of a run; one without lines has nothing to say."""
    return [
        _verdict(pair, looks),
        _differences(pair, looks),
        _gap(pair, looks),
        _spikes(pair, looks, top),
        _tensors(pair, looks, top),
        _checks(pair, looks),
        _scores(pair, looks),
    ]


def curve_lines(facts: CurveFacts, looks: Looks) -> Iterator[str]:
    """What was read of a source."""
    yield from wrap(curve_text(facts), looks.width)
    for note in facts.notes:
        yield from wrap(with_full_stop(f"- {escape(note)}"), looks.width, hanging="  ")


def curve_text(facts: CurveFacts) -> str:
    """The same but for its notes, as a sentence."""
    parts = [f"{count(facts.n_steps, 'step')}, {facts.first_step} to {facts.last_step}"]
    if facts.n_nonfinite:
        parts.append(f"{facts.n_nonfinite:,} with a loss that is NaN or infinite")
    if facts.kind != "run" and facts.taken:
        other = [f"{name} from {escape(column)!r}" for name, column in facts.taken.items() if name != column]
        parts.append(f"columns {listed(tuple(facts.taken))}" + (f" ({', '.join(other)})" if other else ""))
    return f"{'; '.join(parts)}."


def _verdict(pair: Pair, looks: Looks) -> Iterator[str]:
    yield looks.bold(f"RUN {escape(pair.run.name)}")
    yield from curve_lines(pair.run, looks)
    colour = getattr(looks, _COLOURS[pair.verdict.word])
    yield from (colour(line) for line in wrap(escape(pair.verdict.headline), looks.width))
    for sentence in pair.verdict.sentences:
        yield from wrap(f"- {escape(sentence)}", looks.width, hanging="  ")
    if pair.gate is not None:
        yield from wrap(f"- {gate_text(pair.gate)}", looks.width, hanging="  ")


def gate_text(gate: GateResult) -> str:
    """`Gate 0.01: PASS (…).`"""
    return f"Gate {gate.gate}: {gate.outcome.upper()} ({gate.reason})."


def _differences(pair: Pair, looks: Looks) -> Iterator[str]:
    alike = pair.comparability
    if not alike.differences and not alike.same:
        return
    yield looks.bold("DIFFERENCES")
    rows = [(f"  {name}", _short(baseline), _short(run), kind) for name, baseline, run, kind in difference_rows(pair)]
    if rows:
        yield from named_columns([("  what", "baseline", "run", ""), *rows], looks.width)
    if alike.same:
        yield from wrap(f"The same: {', '.join(map(escape, alike.same))}.", looks.width)


def difference_rows(pair: Pair) -> list[tuple[str, str, str, str]]:
    """What differs, its values in the baseline and in the run, and whether it counts."""
    kinds = {"intended": "the experiment", "unintended": "counts", NOTE: "does not count"}
    found = pair.comparability.differences
    return [(escape(one.name), escape(one.baseline), escape(one.run), kinds[one.kind]) for one in found]


def _gap(pair: Pair, looks: Looks) -> Iterator[str]:
    gap = pair.gap
    if gap.absolute is None:
        return
    yield looks.bold("LOSS GAP, run minus baseline")
    yield from columns([("  ", *GAP_HEADER), *((f"  {name}", *cells) for name, *cells in gap_rows(gap))])
    yield from (f"  {words}" for words in gap_remarks(gap))
    if len(gap.points) > 1:
        yield f"  {_drawn(gap, looks)}"


def gap_rows(gap: Gap) -> list[tuple[str, str, str]]:
    """What, and under `GAP_HEADER` how much of it."""
    return [
        (f"last {gap.n_level:,} steps", signed(gap.absolute), percent(gap.relative)),
        ("95 % band", _band(gap.low, gap.high, signed), _band(gap.relative_low, gap.relative_high, percent)),
        ("at first", signed(gap.early), ""),
    ]


def gap_remarks(gap: Gap) -> Iterator[str]:
    """Where the gap goes, and how far single steps are apart."""
    if gap.slope is not None and gap.first_step is not None and gap.last_step is not None:
        moved = gap.slope / 1000 * (gap.last_step - gap.first_step) / 2
        yield f"{gap.trend} in the second half, over which a line through it moves by {signed(moved)}"
    yield f"single steps differ by up to {gap.largest_difference:.3g}"


def _drawn(gap: Gap, looks: Looks) -> str:
    values = [point.absolute for point in gap.points]
    low, high = min(0.0, *values), max(0.0, *values)
    line = sparkline(values, low=low, high=high, width=looks.width - 26, worst=max, ascii_only=looks.ascii_only)
    return f"{line}  {signed(low)} to {signed(high)}"


def _spikes(pair: Pair, looks: Looks, top: int) -> Iterator[str]:
    signals = pair.signals
    if not signals.spikes and not signals.baseline_spikes:
        return
    yield looks.bold("SPIKES")
    yield from wrap(spikes_counted(signals), looks.width)
    rows = [(f"  {of}", *cells) for of, *cells in (SPIKE_HEADER, *spike_rows(signals, top))]
    yield from columns(rows, right=(False, False, True, True, True, True, True, True))
    left = len(signals.spikes) + len(signals.baseline_spikes) - top
    if left > 0:
        yield f"  ... and {count(left, 'spike')} more: {looks.dim('--top N shows more')}"


def spikes_counted(signals: Signals) -> str:
    """How many spikes each of them has."""
    ours, theirs = (
        [sum(spike.series == series for spike in spikes) for series in _SERIES]
        for spikes in (signals.baseline_spikes, signals.spikes)
    )
    return f"Baseline: {ours[0]} in the loss, {ours[1]} in the gradient norm. Run: {theirs[0]} and {theirs[1]}."


def spike_rows(signals: Signals, top: int) -> list[tuple[str, ...]]:
    """Cells under `SPIKE_HEADER`: of the worst spikes, those of the run first."""
    shown = [("run", spike) for spike in signals.spikes] + [("baseline", spike) for spike in signals.baseline_spikes]
    own = {id(spike) for spike in signals.own}
    shown.sort(key=lambda entry: (id(entry[1]) not in own, -entry[1].excess, entry[1].first_step))
    kept = sorted(shown[:top], key=lambda entry: (entry[0] != "run", entry[1].first_step, entry[1].series != "loss"))
    return [(of, *_spike_cells(spike)) for of, spike in kept]


def _spike_cells(spike: Spike) -> tuple[str, ...]:
    height = spike.height
    return (
        _SERIES[spike.series],
        str(spike.first_step),
        _value(spike.value),
        number(spike.before) if spike.before is not None else "-",
        number(spike.peak) if spike.peak is not None else "-",
        f"x{height:.1f}" if height is not None else "-",
        count(spike.n_steps, "step") if spike.recovered_step is not None else "never",
        {True: "no", False: "yes", None: "unknown"}[spike.is_unique],
    )


def _tensors(pair: Pair, looks: Looks, top: int) -> Iterator[str]:
    found = pair.triage
    if found.status == "named":
        yield looks.bold(f"TENSORS that left their band at or before step {found.step}, first one first")
        for place, one in enumerate(found.departures[:top], 1):
            yield from wrap(f"{place}. {escape(departure_text(one))}", looks.width, hanging="   ")
        left = found.n_departed - min(top, len(found.departures))
        if left > 0:
            yield f"  ... and {count(left, 'operand')} more of {found.n_operands:,}"
    elif found.status == "not_recorded" and found.capture_layers:
        yield looks.bold("LAYERS to capture")
        yield from wrap(", ".join(map(escape, found.capture_layers[:top])), looks.width)


def _checks(pair: Pair, looks: Looks) -> Iterator[str]:
    if pair.checks:
        yield looks.bold("CHECK FIRST, since the run is worse from its first steps")
        for check in pair.checks:
            yield from wrap(f"- {check.name}: {check.why}.", looks.width, hanging="  ")


def _scores(pair: Pair, looks: Looks) -> Iterator[str]:
    scores = pair.scores
    if not scores.tasks and not scores.only_in_one:
        return
    yield looks.bold("BENCHMARKS")
    rows = [(f"  {task}", *cells) for task, *cells in (SCORE_HEADER, *score_rows(scores))]
    if scores.tasks:
        yield from named_columns(rows, looks.width, right=(False, True, True, True))
    if scores.only_in_one:
        yield from wrap(f"Only one of them has {', '.join(map(escape, scores.only_in_one))}.", looks.width)


def score_rows(scores: Scores) -> list[tuple[str, ...]]:
    """Cells under `SCORE_HEADER`."""
    return [
        (escape(one.task), f"{one.baseline:.4g}", f"{one.run:.4g}", f"{one.difference:+.3g}",
         "lags" if one.lags else "")
        for one in scores.tasks
    ]  # fmt: skip


# Cells ----------------------------------------------------------------------------------------------------------------


def signed(value: float | None) -> str:
    """A difference of losses."""
    return "-" if value is None else f"{value:+.3g}" if value else "0"


def percent(value: float | None) -> str:
    """A difference as a share."""
    return "-" if value is None else f"{100 * value:+.2g} %" if value else "0 %"


def _band(low: float | None, high: float | None, text: Callable[[float | None], str]) -> str:
    if low is None or high is None:
        return "-"
    return f"{text(low)} to {text(high)}"


def _value(value: float) -> str:
    return number(value) if math.isfinite(value) else "NaN" if math.isnan(value) else "inf"


def _short(shown: str, limit: int = 24) -> str:
    return shown if len(shown) <= limit else f"{shown[: limit - 3]}..."
