"""What of a run holds in FP8, and what could not be judged."""

from __future__ import annotations

from collections.abc import Iterator

from fp8debug.analysis.judged import Judged
from fp8debug.analysis.report import Report
from fp8debug.analysis.thresholds import of_format
from fp8debug.cli.render.stream import Looks
from fp8debug.cli.render.tables import display_width, escape, named_columns, wrap
from fp8debug.cli.render.wording import count, listed


def fine_lines(report: Report, looks: Looks) -> Iterator[str]:
    """The section."""
    yield looks.bold("WHAT IS FINE")
    rows = [(entry.recipe, _share_that_holds(entry), _steps_judged(entry)) for entry in _judged(report)]
    lines = named_columns(rows, looks.width - 2)
    if max(map(display_width, lines), default=0) > looks.width - 2:
        lines = [line for share in fine_shares(report) for line in wrap(share, looks.width - 2, indent="")]
    yield from (f"  {looks.green(line)}" for line in lines)
    for sentence in fine_sentences(report):
        yield from wrap(sentence, looks.width)


def fine_shares(report: Report) -> Iterator[str]:
    """How many operands hold under each recipe."""
    for entry in _judged(report):
        yield f"{escape(entry.recipe)}: {_share_that_holds(entry)} {_steps_judged(entry)}"


def fine_sentences(report: Report) -> Iterator[str]:
    """What was looked at, what could not be judged, and what is typical."""
    health, judged = report.health, _judged(report)
    names = listed(report.run.tensors, "or")
    recorded = "recorded" if report.given is None else "logged"
    yield f"An operand is one tensor ({names}) of one layer; {health.n_operands} were {recorded}."
    yield from filter(None, map(_left_out, report.judged))
    if 0 < health.n_operands_sampled < health.n_operands:
        unsampled = count(health.n_operands - health.n_operands_sampled, "operand was", "operands were")
        text = "seen in no sampled step, so their errors are unknown: record with another `--every`, or with `--first`."
        yield f"{unsampled} {text}"
    yield from filter(None, (_typical(entry, report) for entry in judged[:1]))
    if report.given is not None:
        if not report.given.n_nonfinite:
            yield "No logged number is NaN or infinite."
    elif not (health.n_nan or health.n_inf):
        yield "No NaN and no Inf in any recorded tensor."
    if health.n_operands_all_zero:
        yield f"{count(health.n_operands_all_zero, 'operand')} held nothing but zeros all the time."
    if health.n_operands_approx:
        fp32 = count(health.n_operands_approx, "operand is", "operands are")
        yield f"{fp32} in FP32 or FP64: histograms hold the BF16-rounded values, marked approx."


def _judged(report: Report) -> list[Judged]:
    return [entry for entry in report.judged if entry.n_operands]


def _share_that_holds(entry: Judged) -> str:
    return f"{entry.n_operands - entry.n_candidates} of {entry.n_operands} operands hold in FP8"


def _steps_judged(entry: Judged) -> str:
    return f"({count(entry.n_steps, 'sampled step')} judged)"


def _left_out(entry: Judged) -> str:
    parts = []
    if entry.n_too_small:
        parts.append(f"{count(entry.n_too_small, 'operand')} with too few non-zero values to prove anything")
    if entry.n_warming_up:
        parts.append(f"{count(entry.n_warming_up, 'operand')} seen only while the simulated history was starting up")
    if entry.n_without_limits:
        parts.append(f"{count(entry.n_without_limits, 'operand')} in a format that the rules have no limits for")
    return f"Not judged under {entry.recipe}: {listed(parts)}." if parts else ""


def _typical(entry: Judged, report: Report) -> str:
    parts = [
        f"{value:.1f} dB in {fmt} (healthy {of_format(report.thresholds, 'baseline', fmt):.1f})"
        for fmt, value in entry.median_sqnr_db.items()
    ]
    return f"Typical SQNR under {entry.recipe}: {listed(parts)}." if parts else ""
