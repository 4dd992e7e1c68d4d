"""What was run, what holds, what is missing, what was left out, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence

from fp8debug.analysis.page.records import Query
from fp8debug.analysis.report import Report
from fp8debug.cli.render.commands import sql_command
from fp8debug.cli.render.fine import fine_sentences, fine_shares
from fp8debug.cli.render.html.elements import (
    NOTHING,
    Markup,
    code_block,
    element,
    items,
    joined,
    prose,
    terms,
    text,
)
from fp8debug.cli.render.next_steps import next_commands
from fp8debug.cli.render.run_facts import run_facts
from fp8debug.cli.render.wording import count, with_full_stop

_MOST_PROBLEMS = 100


def facts_body(report: Report) -> Markup:
    """One labelled fact a line, and what it ran on."""
    versions = ", ".join(f"{name} {version}" for name, version in report.run.versions.items())
    more = [("commit", report.run.git_commit or ""), ("with", versions)]
    return terms([(label, text(words)) for label, words in (*run_facts(report), *more)], class_="facts")


def fine_body(report: Report) -> Markup:
    """What holds in FP8, and what could not be judged."""
    sentences = [element("p", prose(sentence)) for sentence in fine_sentences(report)]
    return joined([items(text(share) for share in fine_shares(report)), *sentences])


def problems_body(report: Report) -> Markup:
    """What went wrong or is missing; nothing where a listed finding tells it all."""
    problems = report.untold_problems
    if not problems:
        return NOTHING
    left = len(problems) - _MOST_PROBLEMS
    more = f"... and {count(left, 'problem')} more: `select * from events`."
    entries = [
        prose(with_full_stop(problem.message) + (f" ({problem.count:,} times)" if problem.count > 1 else ""))
        for problem in problems[:_MOST_PROBLEMS]
    ]
    return joined([items(entries), element("p", prose(more)) if left > 0 else NOTHING])


def next_body(report: Report, run_path: str) -> Markup:
    """Commands that lead on."""
    return terms([(f"{what}:", code_block(command, "copy")) for what, command in next_commands(report, run_path)])


def queries_body(queries: Sequence[Query], run_path: str) -> Markup:
    """Every query behind the page, to copy, with the command that asks it."""
    return joined(_query(query, run_path) for query in queries)


def _query(query: Query, run_path: str) -> Markup:
    command = sql_command(run_path, query.sql.strip())
    parts = [element("summary", text(query.title)), code_block(query.sql.strip(), "sql"), code_block(command, "copy")]
    return element("details", *parts)


def notes_body(notes: Sequence[str]) -> Markup:
    """What was left out and by which rule."""
    return items(prose(with_full_stop(note)) for note in notes)
