"""`fp8debug bundle`: a small archive of a run to attach to a bug report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fp8debug.cli.rule_choice import RuleChoice
    from fp8debug.storage import RunPath

_MEGABYTE = 1_000_000


def bundle(
    run_dir: Annotated[
        str | None, typer.Argument(metavar="RUN_DIR", help="Run directory. [the latest in fp8debug-runs]")
    ] = None,
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE", help="The archive to write.")
    ] = "fp8debug-bundle.zip",
    anonymize_layers: Annotated[
        bool, typer.Option("--anonymize-layers", help="Call layers layer_001 and so on, everywhere alike.")
    ] = False,
    max_mb: Annotated[float, typer.Option("--max-mb", metavar="MB", help="Largest size; more is cut.")] = 25.0,
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE.")] = False,
) -> None:
    """Pack what a bug report needs of a run into a small archive.

    Findings, scales, and histograms around the first anomaly. Raw values, paths and names of users and hosts are left
    out. Unpacked, it is a run directory like any other.

    Exit codes: 0 done, 1 it could not be done, 2 wrong usage.
    """
    from fp8debug.cli.rule_choice import rule_choice
    from fp8debug.cli.sink import check_target
    from fp8debug.errors import UsageError
    from fp8debug.rundir import find_run

    if max_mb <= 0:
        raise UsageError(f"--max-mb {max_mb:g}: expected more than 0")
    found = find_run(run_dir)
    target = Path(output)
    check_target(target, force=force, outside=found)
    _bundle(found.path, target, rule_choice(), max_mb, anonymous_layers=anonymize_layers)


def _bundle(path: RunPath, target: Path, chosen: RuleChoice, max_mb: float, *, anonymous_layers: bool) -> None:
    import tempfile

    from fp8debug.analysis.bundle import collect, pack
    from fp8debug.analysis.run import open_run
    from fp8debug.cli.render.bundle import bundle_text
    from fp8debug.cli.render.stream import tell, write_stdout
    from fp8debug.errors import Fp8DebugError

    with tempfile.TemporaryDirectory(prefix="fp8debug-bundle-") as place:
        folder = Path(place) / "run"
        folder.mkdir()
        with open_run(path, thresholds=chosen.thresholds) as run:
            if run.notice is not None:
                raise Fp8DebugError(f"{run.notice}; there is nothing to bundle")
            made = collect(
                run,
                folder,
                rules=chosen.rules(),
                limit_bytes=int(max_mb * _MEGABYTE),
                anonymous_layers=anonymous_layers,
            )
        (folder / "report.txt").write_text(_report(folder, chosen), encoding="utf-8")
        n_bytes = pack(folder, target)
    write_stdout(bundle_text(made, target, n_bytes, width=80))
    if n_bytes > max_mb * _MEGABYTE:
        tell(f"{target} is larger than --max-mb {max_mb:g}, though all was cut that can be")


def _report(folder: Path, chosen: RuleChoice) -> str:
    """What the bundle says when it is opened."""
    from fp8debug.analysis.bundle.archive import TOP
    from fp8debug.analysis.report import build_report
    from fp8debug.analysis.run import open_run
    from fp8debug.cli.render.stream import Looks
    from fp8debug.cli.render.terminal import render_report
    from fp8debug.errors import Fp8DebugError

    try:
        with open_run(folder, thresholds=chosen.thresholds) as run:
            text = render_report(build_report(run, top=10, rules=chosen.rules()), Looks(), run_path=TOP)
    except Fp8DebugError as error:  # a run of losses alone has no report
        text = f"{error}\n".replace(str(folder), TOP)
    for file in chosen.settings.files:  # rules of the user's own
        text = text.replace(file, Path(file).name)
    return text
