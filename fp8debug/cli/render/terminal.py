"""The report as text for a person: what was run, what is fine, what is not, what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from fp8debug.analysis.judged import Judged
from fp8debug.analysis.report import Report
from fp8debug.analysis.suspects import Suspect
from fp8debug.analysis.thresholds import of_format
from fp8debug.cli.render.commands import operand_query, sql_command
from fp8debug.cli.render.run_facts import run_lines
from fp8debug.cli.render.stream import Looks
from fp8debug.cli.render.suspect import candidate_lines, watch_lines
from fp8debug.cli.render.tables import escape, named_columns, wrap
from fp8debug.cli.render.wording import count, listed, operand, with_full_stop

_MAX_PROBLEMS = 20


def render_report(report: Report, looks: Looks, *, run_path: str) -> str:
    """The whole report, ending in a newline. `run_path` is how the commands name the run."""
    sections = (
        run_lines(report, looks, run_path),
        _fine(report, looks),
        _candidates(report, looks),
        _watch(report, looks, run_path),
        _isolated(report, looks, run_path),
        _problems(report, looks, run_path),
        _next(report, looks, run_path),
    )
    return "\n".join("\n".join(lines) + "\n" for section in sections if (lines := list(section)))


# What is fine ---------------------------------------------------------------------------------------------------------


def _fine(report: Report, looks: Looks) -> Iterator[str]:
    yield looks.bold("WHAT IS FINE")
    health = report.health
    judged = [entry for entry in report.judged if entry.n_operands]
    if judged:
        rows = [(entry.recipe, _share_that_holds(entry), _steps_judged(entry)) for entry in judged]
        yield from (f"  {looks.green(line)}" for line in named_columns(rows, looks.width - 2))
    names = listed(report.run.tensors, "or")
    yield from wrap(f"An operand is one tensor ({names}) of one layer; {health.n_operands} were recorded.", looks.width)
    for entry in report.judged:
        yield from wrap(_left_out(entry), looks.width)
    if 0 < health.n_operands_sampled < health.n_operands:
        unsampled = count(health.n_operands - health.n_operands_sampled, "operand was", "operands were")
        text = "seen in no sampled step, so their errors are unknown: record with another `--every`, or with `--first`."
        yield from wrap(f"{unsampled} {text}", looks.width)
    if judged:
        yield from wrap(_typical(judged[0], report), looks.width)
    if not (health.n_nan or health.n_inf):
        yield "  No NaN and no Inf in any recorded tensor."
    if health.n_operands_all_zero:
        yield from wrap(
            f"{count(health.n_operands_all_zero, 'operand')} held nothing but zeros all the time.", looks.width
        )
    if health.n_operands_approx:
        fp32 = count(health.n_operands_approx, "operand is", "operands are")
        yield from wrap(f"{fp32} in FP32 or FP64: histograms hold the BF16-rounded values, marked approx.", looks.width)


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


# What is not ----------------------------------------------------------------------------------------------------------


def _candidates(report: Report, looks: Looks) -> Iterator[str]:
    if report.verdict == "not_enough_evidence":
        yield looks.bold(looks.yellow("NOT ENOUGH EVIDENCE FOR A VERDICT"))
        yield from wrap(_what_is_missing(report), looks.width)
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
    for place, suspect in enumerate(report.candidates, 1):
        yield ""
        yield from candidate_lines(place, suspect, report.thresholds, looks)
    yield from _and_more(report.n_candidates - len(report.candidates), "candidate", looks)


def _what_is_missing(report: Report) -> str:
    if not report.health.n_operands_sampled:
        return (
            "No tensor was sampled, so nothing is known about its error in FP8. Only the scale gaps and the health of "
            "the tensors were recorded. Sample more: `fp8debug attach --every 1 ...` or `--first 20`."
        )
    if not report.judged:
        recipes = listed([escape(recipe) for recipe in report.scope.recipes or report.run.recipes])
        return (
            "The rules judge recipes with one scale a tensor, and there are no error sums of any: recorded was "
            f"{recipes or 'none'}. What block recipes do to the tensors, `fp8debug whatif` shows; for a verdict record "
            "`--recipe current` as well."
        )
    if not report.n_judged_steps and any(entry.n_without_limits for entry in report.judged):
        return (
            "The rules have limits for E4M3 and E5M2 alone, and nothing recorded in these could be judged. What other "
            "formats do to the tensors, `fp8debug whatif` shows."
        )
    needed = int(report.thresholds["min_steps_short"])
    return (
        f"{count(report.n_judged_steps, 'sampled step')} could be judged, a verdict takes at least {needed}. Sample "
        "more: train longer, or record with a smaller `--every`."
    )


def _watch(report: Report, looks: Looks, run_path: str) -> Iterator[str]:
    if not report.n_watch:
        return
    yield looks.bold(looks.yellow(f"WATCH: {count(report.n_watch, 'operand')}, effect on the loss unknown"))
    yield from wrap("Unusual, but not proven harmful: healthy trainings have such operands too.", looks.width)
    for place, suspect in enumerate(report.watch, 1):
        yield ""
        yield from watch_lines(place, suspect, looks)
    yield from _and_more(report.n_watch - len(report.watch), "operand", looks)


def _isolated(report: Report, looks: Looks, run_path: str) -> Iterator[str]:
    if not report.n_isolated_hits:
        return
    yield looks.bold(f"ISOLATED HITS in {count(report.n_isolated_hits, 'step')}: too few to make a candidate")
    for hit in report.isolated_hits:
        yield from wrap(escape(hit.message.replace("…", "...")), looks.width, hanging="  ")
    left = report.n_isolated_hits - len(report.isolated_hits)
    if left:
        yield f"  ... and {count(left, 'step')} more: {_short_sql(run_path, 'from isolated_hits')}"


def _problems(report: Report, looks: Looks, run_path: str) -> Iterator[str]:
    if not report.problems:
        return
    yield looks.bold(looks.red("PROBLEMS: what went wrong or is missing"))
    for problem in report.problems[:_MAX_PROBLEMS]:
        times = f" ({problem.count:,} times)" if problem.count > 1 else ""
        yield from wrap(f"- {with_full_stop(escape(problem.message))}{times}", looks.width, hanging="  ")
    left = len(report.problems) - _MAX_PROBLEMS
    if left > 0:
        yield f"  ... and {left:,} more: {_short_sql(run_path, 'from events')}"


def _next(report: Report, looks: Looks, run_path: str) -> Iterator[str]:
    yield looks.bold("NEXT")
    shown = (*report.candidates, *report.watch)
    if shown:
        yield from _evidence_command(shown[0], looks, run_path)
    if report.run.n_sampled_steps:
        yield f"  {looks.dim('# what other recipes would do to these tensors:')}"
        yield f"  fp8debug whatif {shlex.quote(run_path)}"
    yield f"  {looks.dim('# what else can be asked:')}"
    yield f"  {_short_sql(run_path)}"
    yield f"  {looks.dim('# all of this for a program:')}"
    yield f"  fp8debug report {shlex.quote(run_path)} --json"


def _and_more(left: int, noun: str, looks: Looks) -> Iterator[str]:
    if left:
        yield ""
        yield f"  ... and {count(left, noun)} more: {looks.dim('--top N shows more')}"


def _short_sql(run_path: str, query: str = "") -> str:
    return f"fp8debug sql {shlex.quote(run_path)}" + (f' "{query}"' if query else "")


def _evidence_command(suspect: Suspect, looks: Looks, run_path: str) -> Iterator[str]:
    yield f"  {looks.dim(f'# every number behind {operand(suspect.layer, suspect.tensor)}:')}"
    yield from (f"  {line}" for line in sql_command(run_path, operand_query(suspect)).splitlines())
