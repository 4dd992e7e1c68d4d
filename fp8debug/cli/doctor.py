"""`fp8debug doctor`: what a capture could do here, and what it would see of a script."""

from __future__ import annotations

from typing import Annotated

import typer


def doctor(
    script: Annotated[
        str | None, typer.Argument(help="What python would run; its first step is run. [none: look around]")
    ] = None,
    args: Annotated[list[str] | None, typer.Argument(help="The script's own, whatever they look like.")] = None,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is the name of a module, as in python -m.")] = False,
    layers: Annotated[
        list[str] | None, typer.Option("--layers", metavar="REGEX", help="As attach would be given; repeatable.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option("--exclude", metavar="REGEX", help="As attach would be given; repeatable.")
    ] = None,
    backend: Annotated[
        str | None, typer.Option("--backend", metavar="NAME", help="As attach would be given. [auto]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what would be recorded of a script, and what not.

    Its layers and all GEMMs of its first step, those that are not recorded with the reason. It runs until its first
    optimizer step is done, with its standard output on standard error; nothing of it is kept. Without a script: what a
    capture could do here.
    """
    from fp8debug.cli.render.doctor import environment_text, examination_text, report_json
    from fp8debug.hooks.environment import look_around

    surroundings = look_around()
    if script is None:
        print(report_json(surroundings, None) if as_json else environment_text(surroundings), end="")
        return
    from fp8debug.cli.examination import examine
    from fp8debug.cli.targets import find_target

    given = {"layers": layers, "exclude": exclude, "backend": backend}
    found = examine(find_target(script, module=module), args or (), given)
    print(report_json(surroundings, found) if as_json else examination_text(found), end="")
