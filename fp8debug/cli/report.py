"""`fp8debug report`: say which layers would suffer in FP8, where, and why."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from fp8debug.cli.means import Engine, MemoryLimit

if TYPE_CHECKING:
    from fp8debug.analysis.scope import Scope
    from fp8debug.cli.rule_choice import RuleChoice
    from fp8debug.rundir import RunDir

DEFAULT_TOP = 10
SMALL_RUN_BYTES = 4_000_000


def report(
    run_dir: Annotated[
        str | None, typer.Argument(metavar="RUN_DIR", help="Run directory. [the latest in fp8debug-runs]")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, complete unless --top is given.")
    ] = False,
    html: Annotated[
        str | None,
        typer.Option(
            "--html",
            metavar="[FILE]",
            help="Write one self-contained page and print its name; - for standard output. [RUN_DIR's name.html]",
        ),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option("--top", metavar="N", min=1, help="Show so many entries of each list. [10; on a page 25]"),
    ] = None,
    recipe: Annotated[
        list[str] | None,
        typer.Option("--recipe", metavar="RECIPE", help="Judge this recorded recipe only; repeatable. [all]"),
    ] = None,
    layer: Annotated[
        str | None, typer.Option("--layer", metavar="REGEX", help="Judge layers that match (re.search) only.")
    ] = None,
    steps: Annotated[
        str | None, typer.Option("--steps", metavar="RANGES", help="Judge these steps only, such as 0-9,100,200-.")
    ] = None,
    fail_on: Annotated[
        str | None,
        typer.Option(
            "--fail-on",
            metavar="EXPR",
            help="Exit with 3 when this holds: findings (errors and warnings), errors, warnings, candidates, watch, "
            "isolated, nan, or a comparison such as candidates>2, underflow>0.02 or sqnr_db<20; several with commas.",
        ),
    ] = None,
    threshold: Annotated[
        list[str] | None,
        typer.Option("--threshold", metavar="NAME=VALUE", help="Replace a number of the rules; repeatable."),
    ] = None,
    remedies: Annotated[
        bool,
        typer.Option("--remedies", help="Show all changes that were tried for a candidate, not only the cheapest."),
    ] = False,
    config: Annotated[
        str | None,
        typer.Option("--config", metavar="FILE", help="Take rules and thresholds from FILE. [nearest fp8debug.toml]"),
    ] = None,
    engine: Engine = None,
    memory_limit: MemoryLimit = None,
) -> None:
    """Say which layers would suffer in FP8, where, and why.

    Findings come first: what is wrong, where, since when, how it is known, and what to do.

    Exit codes: 0 done, 1 it could not be done, 2 wrong usage, 3 done and the --fail-on condition holds.
    """
    from fp8debug.cli.collector import paused_collector
    from fp8debug.cli.exit_codes import ExitCode
    from fp8debug.cli.rule_choice import rule_choice

    if as_json and html is not None:
        from fp8debug.errors import UsageError

        raise UsageError("got --json and --html; expected one of them")
    chosen = rule_choice(config, threshold or ())
    scope = _parse_scope(recipe or (), layer or "", steps)
    with paused_collector():
        hit = _report(
            run_dir,
            scope,
            chosen,
            fail_on,
            top,
            engine,
            memory_limit,
            as_json=as_json,
            html=html,
            with_remedies=remedies,
        )
    if hit:
        raise typer.Exit(ExitCode.FAIL_ON)


def _report(
    run_dir: str | None,
    scope: Scope,
    chosen: RuleChoice,
    fail_on: str | None,
    top: int | None,
    engine: str | None,
    memory_limit: str | None,
    *,
    as_json: bool,
    html: str | None,
    with_remedies: bool,
) -> bool:
    """Print the report, or write its page; whether the `--fail-on` condition holds."""
    from fp8debug.cli.fail_on import evaluate, parse_fail_on
    from fp8debug.cli.html_file import HtmlFile, refuse_folder
    from fp8debug.cli.progress import progress
    from fp8debug.cli.render.wording import shown_path
    from fp8debug.rundir import find_run

    terms = parse_fail_on(fail_on) if fail_on is not None else ()
    refuse_folder(html or "")
    found = find_run(run_dir)
    path = run_dir or shown_path(found.path)
    file = None if html is None else HtmlFile.from_option(html, [found.path])

    from fp8debug.analysis.report import build_report
    from fp8debug.analysis.run import open_run
    from fp8debug.cli.report_page import PAGE_TOP, report_page

    opened = partial(
        open_run,
        found.path,
        thresholds=chosen.thresholds,
        memory_limit=memory_limit,
        threads=_threads(found),
        engine=engine,
    )
    rules = chosen.rules()
    n_entries = top if as_json else top or (DEFAULT_TOP if file is None else PAGE_TOP)
    with progress("opening the run") as stage, opened(scope=scope) as run:
        stage.reading(run.prepare(""))
        built = build_report(run, scope=scope, top=n_entries, rules=rules, stage=stage)
        outcome = evaluate(terms, fail_on, built, run) if fail_on is not None else None
        if file is not None:
            stage("making the page")
        page = None if file is None else report_page(run, built, opened, rules=rules, run_path=path)
    if file is not None and page is not None:
        file.write(page)
    elif as_json:
        from fp8debug.cli.render.json import report_json

        sys.stdout.write(report_json(built, outcome))
    else:
        from fp8debug.cli.render.stream import looks_of, write_stdout
        from fp8debug.cli.render.terminal import render_report

        write_stdout(render_report(built, looks_of(sys.stdout), run_path=path, with_remedies=with_remedies))
    if outcome is None or not outcome.hit:
        return False
    from fp8debug.cli.render.stream import tell

    for reason in outcome.reasons:
        tell(f"--fail-on {reason}")
    return True


def _threads(run: RunDir) -> int | None:
    """One thread where little is read: the others would cost more than they bring. None: one a core."""
    if run.storage.path is not None:  # asking for sizes would take longer than threads cost
        return None
    names = [name for table in ("tensors", "scales", "errors") for name in run.part_names(table)]
    n_bytes = 0
    for name in names:
        with contextlib.suppress(FileNotFoundError):  # merged since
            n_bytes += run.storage.size(name)
    return 1 if n_bytes < SMALL_RUN_BYTES else None


def _parse_scope(recipes: Sequence[str], layer: str, steps: str | None) -> Scope:
    from fp8debug.analysis.scope import Scope

    ranges: tuple[tuple[int, int | None], ...] = ()
    if steps is not None:
        from fp8debug.hooks.schedule import parse_steps

        ranges = tuple((part.first, part.last) for part in parse_steps(steps))
    return Scope(recipes=tuple(recipes), layer=layer, steps=ranges)
