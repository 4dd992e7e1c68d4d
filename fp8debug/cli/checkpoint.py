"""`fp8debug checkpoint`: are quantised weights read the way they were written."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from fp8debug.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from fp8debug.analysis.checkpoint import Audit
    from fp8debug.cli.html_file import HtmlFile

DEFAULT_TOP = 10


def checkpoint(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="Safetensors file, a folder of them, a torch.distributed.checkpoint folder, or a .pt file.",
        ),
    ],
    reference: Annotated[
        list[str] | None,
        typer.Option(
            "--reference",
            metavar="PATH",
            help="Hold it against this checkpoint of the same model, quantised or not; repeatable, oldest first.",
        ),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="RUN_DIR", help="Hold it against the weights that a recorded run trained."),
    ] = None,
    dialect: Annotated[
        str | None,
        typer.Option("--as", metavar="DIALECT", help="Read it as this dialect does. [recognised]"),
    ] = None,
    tp: Annotated[
        list[int] | None,
        typer.Option("--tp", metavar="N", min=1, help="Say what N tensor-parallel ranks would cut; repeatable."),
    ] = None,
    consumer: Annotated[
        str | None,
        typer.Option("--consumer", metavar="NAME", help="Check what this reader of checkpoints demands."),
    ] = None,
    valid_rows: Annotated[
        int | None,
        typer.Option("--valid-rows", metavar="N", min=0, help="Rows of matrices that are no padding. [all]"),
    ] = None,
    headers_only: Annotated[
        bool, typer.Option("--headers-only", help="Read headers and scales, and none of the weights.")
    ] = False,
    top: Annotated[
        int, typer.Option("--top", metavar="N", min=1, help="Show so many tensors of each finding and table.")
    ] = DEFAULT_TOP,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, complete whatever --top.")] = False,
    html: Annotated[
        str | None,
        typer.Option(
            "--html",
            metavar="[FILE]",
            help="Write one self-contained page and print its name; - for standard output. [PATH's name.html]",
        ),
    ] = None,
) -> None:
    """Say how a checkpoint's weights and scales are read, and what is wrong with them.

    The convention is recognised from configuration, names, dtypes and shapes, and every assumption is printed. Nothing
    in a checkpoint is executed, and no tensor is held whole. `fp8debug checkpoint quantize` writes small ones.

    Exit codes: 0 nothing is wrong, 1 it could not be read, 2 wrong usage or an ambiguous checkpoint, 3 an error found.
    """
    from fp8debug.analysis.checkpoint import audit_checkpoint
    from fp8debug.cli.html_file import HtmlFile
    from fp8debug.cli.progress import progress
    from fp8debug.errors import UsageError, escape

    if as_json and html is not None:
        raise UsageError("got --json and --html; expected one of them")
    file = None if html is None else HtmlFile.from_option(html, [path])
    with progress(f"opening {escape(path)}") as stage:
        audit = audit_checkpoint(
            path,
            reference or (),
            dialect=dialect,
            tp=tp or (),
            consumer=consumer,
            valid_rows=valid_rows,
            headers_only=headers_only,
            run=run,
            told=stage,
        )
    _show(audit, file, as_json=as_json, top=top)
    if audit.n_errors:
        raise typer.Exit(ExitCode.FAIL_ON)


def _show(audit: Audit, file: HtmlFile | None, *, as_json: bool, top: int) -> None:
    if file is not None:
        from fp8debug.cli.render.html.checkpoint import checkpoint_html

        file.write(checkpoint_html(audit, top=top))
    elif as_json:
        from fp8debug.cli.render.checkpoint_json import checkpoint_json

        sys.stdout.write(checkpoint_json(audit))
    else:
        from fp8debug.cli.render.checkpoint import render_checkpoint
        from fp8debug.cli.render.stream import looks_of, write_stdout

        write_stdout(render_checkpoint(audit, looks_of(sys.stdout), top=top))
