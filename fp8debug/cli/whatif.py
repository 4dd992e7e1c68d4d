"""`fp8debug whatif`: what other recipes would do to the tensors of a run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from fp8debug.cli.means import Engine, MemoryLimit
from fp8debug.cli.narrowing import Layers, Tensors

if TYPE_CHECKING:
    from fp8debug.analysis.run import Run
    from fp8debug.recipes import Recipe

DEFAULT_TOP = 10


class Per(StrEnum):
    """What one set of figures is of."""

    tensor = "tensor"
    layer = "layer"


def whatif(
    run_dir: Annotated[
        str | None, typer.Argument(metavar="RUN_DIR", help="Run directory. [the latest in fp8debug-runs]")
    ] = None,
    recipe: Annotated[
        list[str] | None,
        typer.Option(
            "--recipe",
            metavar="RECIPE",
            help="Recipe to compare, such as delayed:margin=2 or mxfp8; repeatable. [those recorded, current, delayed]",
        ),
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            "--sweep",
            metavar="NAME=RANGE",
            help="Try these values of a parameter in each recipe that has it: margin=0:4, amax_history_len=1:1024:341 "
            "or fp8_format=E4M3,E5M2; repeatable.",
        ),
    ] = None,
    layer: Layers = None,
    tensor: Tensors = None,
    steps: Annotated[
        str | None, typer.Option("--steps", metavar="RANGES", help="Sampled steps, such as 0-9,100,200-. [all]")
    ] = None,
    per: Annotated[
        Per, typer.Option("--per", help="Figures summed over layers, or of each layer, worst first.")
    ] = Per.tensor,
    top: Annotated[
        int, typer.Option("--top", metavar="N", min=1, help="Show so many layers with --per layer.")
    ] = DEFAULT_TOP,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, complete whatever --top.")] = False,
    engine: Engine = None,
    memory_limit: MemoryLimit = None,
) -> None:
    """Say what other scaling recipes would do to the tensors of a run.

    One BF16 run answers for every recipe with one scale a tensor (current, delayed, static, bf16, coat), exactly, for
    any parameter. Block recipes and results of GEMMs are shown where they were recorded: `fp8debug attach --recipe R`.

    Exit codes: 0 done, 1 it could not be done, 2 wrong usage.
    """
    from fp8debug.analysis.run import open_run
    from fp8debug.analysis.whatif import whatif as ask
    from fp8debug.cli.collector import paused_collector
    from fp8debug.cli.narrowing import step_ranges, tensors_named
    from fp8debug.cli.progress import progress
    from fp8debug.cli.render.wording import count, shown_path
    from fp8debug.rundir import find_run

    ranges = step_ranges(steps)
    tensors = tensors_named(tensor)
    found = find_run(run_dir)
    with paused_collector(), open_run(found.path, engine=engine, memory_limit=memory_limit) as run:
        recipes = _recipes(run, recipe or (), sweep or ())
        with progress(f"trying {count(len(recipes), 'recipe')}") as stage:
            stage.reading(run.prepare(""))
            answer = ask(run, recipes, layer=layer, tensors=tensors, steps=ranges, per_layer=per is Per.layer)
        if as_json:
            from fp8debug.cli.render.whatif import whatif_json

            sys.stdout.write(whatif_json(answer, str(run.path)))
            return
        from fp8debug.cli.render.stream import looks_of, write_stdout
        from fp8debug.cli.render.whatif import render_whatif

        path = run_dir or shown_path(found.path)
        looks = looks_of(sys.stdout)
        write_stdout(render_whatif(answer, looks, run_path=path, top=top, per_layer=per is Per.layer))


def _recipes(run: Run, texts: Sequence[str], sweeps: Sequence[str]) -> tuple[Recipe, ...]:
    from fp8debug.analysis.whatif import default_recipes, parse_sweep, swept
    from fp8debug.recipes import parse_recipe

    recipes = [parse_recipe(text) for text in texts] or default_recipes(run)
    return swept(recipes, [parse_sweep(text) for text in sweeps])
