"""Commands that lead on from a report."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from fp8debug.analysis.report import Report
from fp8debug.cli.render.commands import fitted, operand_query, short_sql, sql_command
from fp8debug.cli.render.stream import Looks
from fp8debug.cli.render.wording import operand


def next_lines(report: Report, looks: Looks, run_path: str) -> Iterator[str]:
    """The section: what fits what was found."""
    yield looks.bold("NEXT")
    for what, command in next_commands(report, run_path):
        yield f"  {looks.dim(f'# {what}:')}"
        yield from (f"  {line}" for line in fitted(command, looks.width - 2))


def next_commands(report: Report, run_path: str) -> Iterator[tuple[str, str]]:
    """(what it is for, command); `run_path` is how the commands name the run."""
    run = shlex.quote(run_path)
    if report.findings:
        yield "the rule behind the first finding, with its numbers", f"fp8debug rules {report.findings[0].rule}"
    if report.n_candidates:
        yield "the cheapest changes that mend this, as a plan", f"fp8debug plan {run} -o plan.toml"
        yield (
            "whether the plan helps the loss, by emulated trainings",
            f"fp8debug verify --plan plan.toml {_script(report.run.command)}",
        )
    for suspect in (*report.candidates, *report.watch)[:1]:
        name = operand(suspect.layer, suspect.tensor)
        yield f"every number behind {name}", sql_command(run_path, operand_query(suspect))
    if report.run.n_sampled_steps:
        yield "what other recipes would do to these tensors", f"fp8debug whatif {run}"
    yield "what else can be asked", short_sql(run_path)
    if report.n_errors or report.n_warnings:
        yield "a small file to attach to a bug report", f"fp8debug bundle {run}"
    yield "all of this for a program", f"fp8debug report {run} --json"


def _script(command: str) -> str:
    """The script of a command line with its arguments, whatever launched it."""
    words = shlex.split(command)
    starts = [place for place, word in enumerate(words) if word.endswith(".py")]
    return shlex.join(words[starts[0] :]) if starts else "train.py"
