"""Operand by operand: candidates for BF16, the watch list, isolated hits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fp8debug.analysis.report import Report
from fp8debug.analysis.suspects import Suspect
from fp8debug.cli.render.commands import short_sql
from fp8debug.cli.render.missing import what_is_missing
from fp8debug.cli.render.stream import Looks
from fp8debug.cli.render.suspect import candidate_lines, watch_lines
from fp8debug.cli.render.suspect_table import suspect_table
from fp8debug.cli.render.tables import escape, wrap
from fp8debug.cli.render.wording import count, listed


def candidates_lines(report: Report, looks: Looks) -> Iterator[str]:
    """Those that a finding tells of as a table, the others in full."""
    if report.verdict == "not_enough_evidence":  # which is what the report begins with
        return
    if not report.is_judged and not report.n_candidates:
        yield looks.bold(looks.yellow("NOT ENOUGH EVIDENCE FOR A VERDICT"))
        yield from wrap(what_is_missing(report), looks.width)
        return
    if not report.n_candidates:
        judged = [entry.recipe for entry in report.judged if entry.n_operands]
        yield looks.bold(looks.green("NO CANDIDATE FOR BF16"))
        yield from wrap(f"No judged operand needs to fall back to BF16 under {listed(judged, 'or')}.", looks.width)
        for caveat in report.ranks.caveats if report.ranks is not None else ():
            yield from wrap(f"But {escape(caveat)}.", looks.width, hanging="  ")
        return
    yield looks.bold(looks.red(f"{count(report.n_candidates, 'CANDIDATE', 'CANDIDATES')} FOR BF16, worst first"))
    yield from wrap(
        "Operands that FP8 damages step after step. Ranked by dB lost: how far the signal-to-noise ratio of the cast "
        "(SQNR) is below what it is for a healthy tensor.",
        looks.width,
    )
    told, untold = _told(report, report.candidates)
    if told:
        yield from suspect_table(told, looks)
    for place, suspect in enumerate(untold, 1):
        yield ""
        yield from candidate_lines(place, suspect, report.thresholds, looks)
    yield from _and_more(report.n_candidates - len(report.candidates), "candidate", looks)


def _told(report: Report, suspects: Sequence[Suspect]) -> tuple[list[Suspect], list[Suspect]]:
    """Those that a finding tells of, and the others."""
    places = {(place.layer, place.tensor) for finding in report.findings for place in finding.places}
    told = [suspect for suspect in suspects if (suspect.layer, suspect.tensor) in places]
    return told, [suspect for suspect in suspects if (suspect.layer, suspect.tensor) not in places]


def watch_list_lines(report: Report, looks: Looks) -> Iterator[str]:
    """Operands to keep an eye on."""
    if not report.n_watch:
        return
    yield looks.bold(looks.yellow(f"WATCH: {count(report.n_watch, 'operand')}, effect on the loss unknown"))
    yield from wrap("Unusual, but not proven harmful: healthy trainings have such operands too.", looks.width)
    told, untold = _told(report, report.watch)
    if told:
        yield from suspect_table(told, looks)
    for place, suspect in enumerate(untold, 1):
        yield ""
        yield from watch_lines(place, suspect, looks)
    yield from _and_more(report.n_watch - len(report.watch), "operand", looks)


def isolated_lines(report: Report, looks: Looks, run_path: str) -> Iterator[str]:
    """Steps at which operands hit once."""
    if not report.n_isolated_hits:
        return
    yield looks.bold(f"ISOLATED HITS in {count(report.n_isolated_hits, 'step')}: too few to make a candidate")
    for hit in report.isolated_hits:
        yield from wrap(escape(hit.message.replace("…", "...")), looks.width, hanging="  ")
    left = report.n_isolated_hits - len(report.isolated_hits)
    if left:
        yield f"  ... and {count(left, 'step')} more: {short_sql(run_path, 'from isolated_hits')}"


def _and_more(left: int, noun: str, looks: Looks) -> Iterator[str]:
    if left:
        yield ""
        yield f"  ... and {count(left, noun)} more: {looks.dim('--top N shows more')}"
