"""`fp8debug control`: change what a running capture records."""

from __future__ import annotations

from typing import Annotated

import typer


def control(
    run_dir: Annotated[
        str | None, typer.Argument(metavar="RUN_DIR", help="Run directory. [the latest in fp8debug-runs]")
    ] = None,
    layers: Annotated[
        list[str] | None, typer.Option("--layers", metavar="REGEX", help="Layers to take from now on; repeatable.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option("--exclude", metavar="REGEX", help="Layers to leave out; repeatable.")
    ] = None,
    all_layers: Annotated[bool, typer.Option("--all-layers", help="Take every layer again.")] = False,
    tensors: Annotated[
        str | None, typer.Option("--tensors", metavar="LIST", help="What to record, of x,w,dy,y,dx,dw,m,v,key,value.")
    ] = None,
    every: Annotated[
        int | None, typer.Option("--every", metavar="N", help="Take errors and histograms in every Nth step.")
    ] = None,
    raw_every: Annotated[
        int | None, typer.Option("--raw-every", metavar="M", help="Dump raw values in every Mth step; 0: never.")
    ] = None,
    raw_now: Annotated[bool, typer.Option("--raw-now", help="Dump raw values in the next step, once.")] = False,
    detail: Annotated[
        str | None,
        typer.Option("--detail", metavar="LIST", help="What sampled steps take, of channels,blocks,gemms, or none."),
    ] = None,
) -> None:
    """Change what a running capture records.

    Every rank follows at its next step. What is not given stays; without an option it prints what is in force and
    what each rank has made of it.
    """
    from fp8debug.cli.commander import ask, status_lines, written_line
    from fp8debug.cli.render.stream import tell
    from fp8debug.errors import UsageError, escape

    if all_layers and (layers or exclude):
        raise UsageError("--all-layers takes every layer, --layers and --exclude some; give one or the other")
    given: dict[str, object] = {"layers": [], "exclude": []} if all_layers else {}
    written = {
        "layers": layers or None,
        "exclude": exclude or None,
        "tensors": tensors,
        "every": every,
        "raw-every": raw_every,
        "detail": detail,
    }
    given |= {key: value for key, value in written.items() if value is not None}
    if given or raw_now:
        tell(written_line(ask(run_dir, given, raw_now=raw_now), run_dir))
        return
    print("\n".join(map(escape, status_lines(run_dir))))
