"""`fp8debug compare`: loss curves of runs held against a baseline."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from fp8debug.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from fp8debug.analysis.compare import Comparison

DEFAULT_TOP = 10


def compare(
    baseline: Annotated[
        str,
        typer.Argument(
            metavar="BASELINE",
            help="Run directory, or a CSV, JSON or JSON lines file with step and loss; usually BF16.",
        ),
    ],
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="The same of each run to hold against it.")],
    gate: Annotated[
        list[str] | None,
        typer.Option(
            "--gate",
            metavar="LIMIT",
            help="Largest accepted loss gap at the end, such as 0.01, or 0.25% of the loss; repeatable, all must hold.",
        ),
    ] = None,
    manifest: Annotated[
        list[str] | None,
        typer.Option(
            "--manifest",
            metavar="FILE",
            help="JSON object of settings (seed, lr, switches, versions) of a curve: first of BASELINE, then of each "
            "RUN; `-` for the one beside it; repeatable. [<curve>.manifest.json beside it]",
        ),
    ] = None,
    top: Annotated[
        int, typer.Option("--top", metavar="N", min=1, help="Show so many spikes and tensors a run.")
    ] = DEFAULT_TOP,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, complete whatever --top.")] = False,
    html: Annotated[
        str | None,
        typer.Option(
            "--html",
            metavar="[FILE]",
            help="Write one self-contained page and print its name; - for standard output. [BASELINE-RUN.html]",
        ),
    ] = None,
) -> None:
    """Say if a run is worse than its baseline, since when and why.

    Losses are compared at the same steps: are the runs comparable, how large is the smoothed gap and where does it go,
    which spikes has only one of them, which tensors left their band before the first of them.

    Exit codes: 0 done, 1 it could not be done or the noise leaves the gate undecided, 2 wrong usage, 3 a gate failed.
    """
    from fp8debug.analysis.compare import compare as ask
    from fp8debug.analysis.compare import parse_gate
    from fp8debug.cli.collector import paused_collector
    from fp8debug.cli.html_file import HtmlFile
    from fp8debug.cli.progress import progress
    from fp8debug.cli.render.wording import count
    from fp8debug.errors import UsageError, escape

    if as_json and html is not None:
        raise UsageError("got --json and --html; expected one of them")
    file = None if html is None else HtmlFile.from_option(html, [baseline, *runs])
    limit = parse_gate(gate or ())
    files = [None if file == "-" else file for file in manifest or ()]
    if len(files) > 1 + len(runs):
        raise UsageError(f"--manifest: got {len(files)} for {1 + len(runs)} curves; expected at most one a curve")
    with paused_collector(), progress(f"comparing {count(len(runs), 'run')} with {escape(baseline)}"):
        found = ask(baseline, runs, gate=limit, manifests=files)
        page = None if file is None else _page(found, top)
    if file is not None and page is not None:
        file.write(page)
    elif as_json:
        from fp8debug.cli.render.compare import compare_json

        sys.stdout.write(compare_json(found))
    else:
        from fp8debug.cli.render.compare import render_comparison
        from fp8debug.cli.render.stream import looks_of, write_stdout

        write_stdout(render_comparison(found, looks_of(sys.stdout), top=top))
    code = _exit_code(found)
    if code:
        raise typer.Exit(code)


def _page(found: Comparison, top: int) -> str:
    import shlex

    from fp8debug.analysis.page.several import several_page
    from fp8debug.cli.render.html.compare import comparison_html
    from fp8debug.cli.render.html.data import PageData

    shown = several_page(found)
    names = [found.baseline.name, *(pair.run.name for pair in found.pairs)]
    data = PageData("compare", shown.metrics, shown.formats, shown.runs)
    return comparison_html(found, data, top=top, command=f"fp8debug compare {shlex.join(names)}")


def _exit_code(found: Comparison) -> ExitCode:
    outcomes = {pair.gate.outcome for pair in found.pairs if pair.gate is not None}
    if "fail" in outcomes:
        return ExitCode.FAIL_ON
    return ExitCode.FAILED if "undecided" in outcomes else ExitCode.DONE
