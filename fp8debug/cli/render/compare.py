"""A comparison as text or JSON: for each run the verdict, then what it stands on."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from fp8debug import __version__
from fp8debug.analysis.compare import Comparison, Pair
from fp8debug.cli.render.compare_sections import curve_lines, pair_sections, percent, signed
from fp8debug.cli.render.document import document_text
from fp8debug.cli.render.stream import Looks
from fp8debug.cli.render.tables import escape, named_columns

COMPARE_VERSION = 1
RUNS_HEADER = ("run", "verdict", "gap", "%", "trend", "spikes", "gate")


def compare_json(found: Comparison) -> str:
    """One object and a newline. What is unknown, NaN or infinite is null.

    `compare_version` rises when a key changes its meaning or goes; new keys may appear without.
    """
    document = {"compare_version": COMPARE_VERSION, "fp8debug_version": __version__, **asdict(found)}
    return document_text(document)


def render_comparison(found: Comparison, looks: Looks, *, top: int) -> str:
    """The whole comparison, ending in a newline."""
    sections = [_head(found, looks)]
    if len(found.pairs) > 1:
        sections.append(_side_by_side(found.pairs, looks))
    for pair in found.pairs:
        sections += pair_sections(pair, looks, top)
    sections.append(_next(found, looks))
    return "\n".join("\n".join(lines) + "\n" for section in sections if (lines := list(section)))


# Head and foot --------------------------------------------------------------------------------------------------------


def _head(found: Comparison, looks: Looks) -> Iterator[str]:
    yield looks.bold(f"COMPARE {escape(found.baseline.name)}, the baseline")
    yield from curve_lines(found.baseline, looks)


def _side_by_side(pairs: Sequence[Pair], looks: Looks) -> Iterator[str]:
    yield looks.bold("RUNS")
    rows = [(f"  {run}", *cells) for run, *cells in (RUNS_HEADER, *run_rows(pairs))]
    yield from named_columns(rows, looks.width, right=(False, False, True, True, False, True))


def run_rows(pairs: Sequence[Pair]) -> list[tuple[str, ...]]:
    """Cells under `RUNS_HEADER`, one row a run."""
    return [
        (escape(pair.run.name), pair.verdict.word.replace("_", " "), signed(pair.gap.absolute),
         percent(pair.gap.relative), pair.gap.trend, str(len(pair.signals.own)),
         pair.gate.outcome.upper() if pair.gate else "-")
        for pair in pairs
    ]  # fmt: skip


def _next(found: Comparison, looks: Looks) -> Iterator[str]:
    commands = next_reports(found)
    if commands:
        yield looks.bold("NEXT")
        yield from (f"  {command}" for command in commands)


def next_reports(found: Comparison) -> list[str]:
    """Commands that look into the runs in which something shows."""
    runs = [pair for pair in found.pairs if pair.run.kind == "run" and pair.verdict.word not in ("none", "transient")]
    return [f"fp8debug report {shlex.quote(pair.run.name)}" for pair in runs]
