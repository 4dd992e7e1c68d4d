"""`fp8debug show`: one tensor of a run, looked at closely."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fp8debug.analysis.operand import Operand
    from fp8debug.rundir import RunDir


def show(
    run_dir: Annotated[str, typer.Argument(metavar="RUN_DIR", help="Run directory.")],
    layer: Annotated[
        str, typer.Argument(metavar="LAYER", help="Its name, or a regex (re.search) that only one layer matches.")
    ],
    tensor: Annotated[
        str | None,
        typer.Argument(
            metavar="TENSOR", help="One of x, w, dy, y, dx, dw, or activation, gradient, ... [all, in short form]"
        ),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(
            "--step",
            metavar="N",
            min=0,
            help="Look at the step nearest to N of which values were counted. [the last; of an operand with a verdict "
            "the last that it is about]",
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe", metavar="RECIPE", help="Recorded recipe to look at, or its kind. [that of its worst verdict]"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, complete.")] = False,
) -> None:
    """Look at one tensor closely: values, formats, scales, history.

    Its magnitudes before and after a recipe, what each format keeps of them, and what the rules say of it. Without
    TENSOR, all tensors of the layer in short form.

    Exit codes: 0 done, 1 it could not be done, 2 wrong usage.
    """
    from fp8debug.cli.collector import paused_collector
    from fp8debug.rundir import find_run

    found = find_run(run_dir)
    with paused_collector():
        operands = _look(found, layer, tensor, step, recipe)
    if as_json:
        from fp8debug.cli.render.show import show_json

        sys.stdout.write(show_json(operands, str(found.path)))
        return
    from fp8debug.cli.render.show import render_layer, render_operand
    from fp8debug.cli.render.stream import looks_of, write_stdout

    looks = looks_of(sys.stdout)
    if tensor is not None and len(operands) == 1:
        write_stdout(render_operand(operands[0], looks, run_path=run_dir))
    else:
        write_stdout(render_layer(operands, looks, run_path=run_dir))


def _look(found: RunDir, text: str, tensor: str | None, step: int | None, recipe: str | None) -> tuple[Operand, ...]:
    """Find the layer, then open the run at it alone: rules need not go through the others."""
    import re

    from fp8debug.analysis.operand import layer_named, look, tensors_named
    from fp8debug.analysis.run import open_run
    from fp8debug.analysis.scope import Scope
    from fp8debug.cli.rule_choice import rule_choice

    chosen = rule_choice()
    # One thread: so little is read that others would cost more than they bring.
    with open_run(found.path, threads=1) as run:
        layer = layer_named(run, text)
    scope = Scope(layer=rf"\A{re.escape(layer)}\Z")
    with open_run(found.path, thresholds=chosen.thresholds, threads=1, scope=scope) as run:
        tensors = tensors_named(run, layer, tensor)
        return look(run, layer, tensors, step=step, recipe=recipe, rules=chosen.rules())
