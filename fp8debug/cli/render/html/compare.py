"""The page of a comparison: the verdict of each pair, what it stands on, and the runs side by side."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from fp8debug.analysis.compare import Comparison, Pair
from fp8debug.analysis.compare.comparison import CurveFacts
from fp8debug.analysis.compare.sentences import departure_text
from fp8debug.cli.render.compare import RUNS_HEADER, next_reports, run_rows
from fp8debug.cli.render.compare_sections import (
    GAP_HEADER,
    SCORE_HEADER,
    SPIKE_HEADER,
    curve_text,
    difference_rows,
    gap_remarks,
    gap_rows,
    gate_text,
    score_rows,
    spike_rows,
    spikes_counted,
)
from fp8debug.cli.render.html.data import PageData
from fp8debug.cli.render.html.document import Document, Section, mount, write
from fp8debug.cli.render.html.elements import (
    NOTHING,
    Markup,
    cell,
    code_block,
    column,
    element,
    items,
    joined,
    number,
    prose,
    row_head,
    table,
    terms,
    text,
)
from fp8debug.cli.render.html.links import Cells
from fp8debug.cli.render.html.report import HEATMAP_HELP, LAYER_HELP, TRAINING_HELP
from fp8debug.cli.render.wording import count, listed, with_full_stop
from fp8debug.errors import escape

_SIDE_BY_SIDE = "One heatmap a run, on the same layers and steps; of two runs also the second less the first. "


def comparison_html(found: Comparison, data: PageData, *, top: int, command: str) -> str:
    """The whole page, ending in a newline. `command` is what compares the same runs in a terminal."""
    names = [run.name for run in data.runs]
    cells = Cells.of(data.runs, [metric.name for metric in data.metrics])
    has_planes = any(run.planes for run in data.runs)
    heatmap = mount("heatmap", _SIDE_BY_SIDE + HEATMAP_HELP) if has_planes else NOTHING
    sections = [
        Section("runs", "Runs", _runs(found.pairs, names[1:]) if len(found.pairs) > 1 else NOTHING),
        *(
            Section(f"pair-{n}", f"{names[n]} against {names[0]}", _pair(pair, top, cells))
            for n, pair in enumerate(found.pairs, 1)
        ),
        Section("training-section", "Training", mount("training", TRAINING_HELP)),
        Section("heatmap-section", "Layers over steps", heatmap),
        Section("layer-section", "One layer", mount("layer", LAYER_HELP) if has_planes else NOTHING),
        Section("sources", "What was read", _sources(found)),
        Section("next", "Next", _next(found, command)),
    ]
    title = f"{listed(names[1:])} against {names[0]}"
    return write(Document(f"{escape(title)} - fp8debug", _head(found, title, names[1:]), sections, (), data))


def _head(found: Comparison, title: str, names: Sequence[str]) -> Markup:
    verdicts = (_verdict(pair, name if len(names) > 1 else "") for pair, name in zip(found.pairs, names, strict=True))
    return joined([element("h1", text(title)), *verdicts])


def _verdict(pair: Pair, name: str) -> Markup:
    words = f"{name}: {pair.verdict.headline}" if name else pair.verdict.headline
    return element("p", element("strong", text(words)), class_=f"verdict {pair.verdict.word}")


def _runs(pairs: Sequence[Pair], names: Sequence[str]) -> Markup:
    rows = [
        [row_head(text(name)), cell(text(verdict)), *map(number, cells)]
        for name, (_, verdict, *cells) in zip(names, run_rows(pairs), strict=True)
    ]
    return table("Runs", _columns(RUNS_HEADER, n_words=2), rows)


def _pair(pair: Pair, top: int, cells: Cells) -> Markup:
    sentences = [prose(sentence) for sentence in pair.verdict.sentences]
    if pair.gate is not None:
        sentences.append(text(gate_text(pair.gate)))
    parts = [
        ("Loss gap, run minus baseline", _gap(pair)),
        ("Tensors that left their band first", _tensors(pair, top, cells)),
        ("Check first, since the run is worse from its first steps", _checks(pair)),
        ("Spikes", _spikes(pair, top)),
        ("Differences", _differences(pair)),
        ("Benchmarks", _scores(pair)),
    ]
    told = [joined([element("h3", text(heading)), body]) for heading, body in parts if body]
    return joined([element("p", text(pair.verdict.headline)), items(sentences), *told])


def _gap(pair: Pair) -> Markup:
    if pair.gap.absolute is None:
        return NOTHING
    rows = [[row_head(text(name)), *map(number, cells)] for name, *cells in gap_rows(pair.gap)]
    remarks = " ".join(with_full_stop(remark[:1].upper() + remark[1:]) for remark in gap_remarks(pair.gap))
    return joined([table("Loss gap", _columns(("", *GAP_HEADER)), rows), _paragraph(remarks)])


def _tensors(pair: Pair, top: int, cells: Cells) -> Markup:
    found = pair.triage
    if found.status == "named":
        entries = [_departure(one.layer, one.tensor, one.step, departure_text(one), cells)
                   for one in found.departures[:top]]  # fmt: skip
        left = found.n_departed - len(entries)
        more = f"... and {count(left, 'operand')} more of {found.n_operands:,}." if left > 0 else ""
        intro = f"At or before step {found.step}, first one first."
        return joined([element("p", text(intro)), items(entries, name="ol"), _paragraph(more)])
    if found.status == "not_recorded" and found.capture_layers:
        layers = ", ".join(found.capture_layers[:top])
        return element("p", text(f"None was recorded. Layers to capture: {layers}."))
    return NOTHING


def _departure(layer: str, tensor: str, step: int, words: str, cells: Cells) -> Markup:
    name = f"{layer} {tensor}"
    return joined([cells.link(layer, tensor, step), text(words.removeprefix(name))])


def _checks(pair: Pair) -> Markup:
    return items(text(f"{check.name}: {check.why}.") for check in pair.checks)


def _spikes(pair: Pair, top: int) -> Markup:
    signals = pair.signals
    n_spikes = len(signals.spikes) + len(signals.baseline_spikes)
    if not n_spikes:
        return NOTHING
    rows = [[row_head(text(of)), cell(text(series)), *map(number, cells)]
            for of, series, *cells in spike_rows(signals, top)]  # fmt: skip
    more = f"... and {count(n_spikes - top, 'spike')} more: `--top N` shows more." if n_spikes > top else ""
    return joined(
        [
            element("p", text(spikes_counted(signals))),
            table("Spikes", _columns(SPIKE_HEADER, n_words=2), rows),
            _paragraph(more),
        ]
    )


def _differences(pair: Pair) -> Markup:
    alike = pair.comparability
    rows = [[row_head(text(name)), *(cell(text(words)) for words in cells)] for name, *cells in difference_rows(pair)]
    head = _columns(("what", "baseline", "run", ""), n_words=4)
    found = table("Differences", head, rows) if rows else NOTHING
    return joined([found, _paragraph(f"The same: {', '.join(alike.same)}." if alike.same else "")])


def _scores(pair: Pair) -> Markup:
    scores = pair.scores
    rows = [[row_head(text(task)), *map(number, cells)] for task, *cells in score_rows(scores)]
    found = table("Benchmarks", _columns(SCORE_HEADER), rows) if rows else NOTHING
    alone = f"Only one of them has {', '.join(scores.only_in_one)}." if scores.only_in_one else ""
    return joined([found, _paragraph(alone)])


def _sources(found: Comparison) -> Markup:
    named = [("baseline", found.baseline), *(("run", pair.run) for pair in found.pairs)]
    return terms((f"{of} {facts.name}", _source(facts)) for of, facts in named)


def _source(facts: CurveFacts) -> Markup:
    return joined([text(curve_text(facts)), items(text(with_full_stop(note)) for note in facts.notes)])


def _next(found: Comparison, command: str) -> Markup:
    commands = [(f"look into {shlex.split(report)[-1]}:", report) for report in next_reports(found)]
    return terms((what, code_block(words, "copy")) for what, words in (*commands, ("the same in a terminal:", command)))


def _columns(names: Iterable[str], *, n_words: int = 1) -> list[Markup]:
    """Heads of columns, of which the first `n_words` are of words."""
    return [column(name, is_number=place >= n_words) for place, name in enumerate(names)]


def _paragraph(words: str) -> Markup:
    return element("p", prose(words)) if words else NOTHING
