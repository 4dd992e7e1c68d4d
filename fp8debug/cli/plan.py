"""`fp8debug plan`: the cheapest changes that help, in the format of the framework that trains."""

from __future__ import annotations

from typing import Annotated

import typer


def plan(
    run_dir: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN_DIR",
            help="Run directory. With --check also a model: file.py:name, a Hugging Face model directory, or a file of "
            "layer names, one a line or a JSON list. [the latest in fp8debug-runs]",
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="Write the plan there. [standard output]")
    ] = None,
    target: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="TARGET",
            help="Whose format: fp8debug, te (Transformer Engine's debug API), megatron, torchtitan, torchao or "
            "accelerate.",
        ),
    ] = "fp8debug",
    recipe: Annotated[
        str | None,
        typer.Option("--recipe", metavar="RECIPE", help="What the layers compute with. [the recipe in use]"),
    ] = None,
    target_sqnr: Annotated[
        float | None,
        typer.Option("--target-sqnr", metavar="DB", help="Take out the fewest layers that bring all GEMMs to DB."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option("--budget", metavar="SHARE", help="Take out the noisiest layers, up to 5% of the GEMM FLOPs."),
    ] = None,
    layers_only: Annotated[
        bool, typer.Option("--layers-only", help="Take out whole layers only: what every format can say.")
    ] = False,
    names: Annotated[
        str, typer.Option("--names", metavar="te|model", help="With te: layers as it infers them, or as in the run.")
    ] = "te",
    check: Annotated[
        str | None,
        typer.Option("--check", metavar="FILE", help="Say what the plan FILE, in any of the formats, would match."),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option("--config", metavar="FILE", help="Take thresholds from FILE. [nearest fp8debug.toml]"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file that -o names.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, with the plan in it.")] = False,
) -> None:
    """Write what to change, in the format of your framework.

    By default that is the cheapest change that helps, for each operand that suffers. What a format cannot say is
    widened to the next larger thing that it can, and said. With --check nothing is made: each entry of a plan is held
    against the layers of a run or a model.

    Exit codes: 0 done, 1 it could not be done, 2 wrong usage, 3 with --check: an entry matches nothing or too much.
    """
    from fp8debug.cli.collector import paused_collector
    from fp8debug.cli.planning import Wish, check_plan, make_plan

    if check is not None:
        if not check_plan(check, run_dir, names=names, as_json=as_json):
            from fp8debug.cli.exit_codes import ExitCode

            raise typer.Exit(ExitCode.FAIL_ON)
        return
    wish = Wish(target, recipe, target_sqnr, budget, layers_only, names, config)
    with paused_collector():
        make_plan(run_dir, wish, output, force=force, as_json=as_json)
