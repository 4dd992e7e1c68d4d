"""`fp8debug checkpoint quantize`: an FP8 checkpoint of one in high precision."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fp8debug.analysis.checkpoint.quantize import Written

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def checkpoint_quantize(
    source: Annotated[str, typer.Argument(metavar="IN", help="Checkpoint in BF16, F16 or F32: file or folder.")],
    target: Annotated[str, typer.Argument(metavar="OUT", help="Folder to write, or a file NAME.safetensors.")],
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe",
            metavar="RECIPE",
            help="How weights are scaled and cast: current, rowwise, block, mxfp8, mxfp4, nvfp4, with parameters as in "
            "block:power_of_two=false.",
        ),
    ] = None,
    dialect: Annotated[
        str | None,
        typer.Option("--as", metavar="DIALECT", help="Convention to write it in. [the usual one of the recipe]"),
    ] = None,
    include: Annotated[
        str | None,
        typer.Option(
            "--include", metavar="REGEX", help="Quantise these modules only (re.search). [weights of Linear layers]"
        ),
    ] = None,
    exclude: Annotated[
        str | None, typer.Option("--exclude", metavar="REGEX", help="Keep these modules in high precision.")
    ] = None,
    shard_size: Annotated[
        str | None,
        typer.Option("--shard-size", metavar="SIZE", help="Most bytes of a file in OUT, such as 2GB. [5GB]"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier checkpoint.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, complete.")] = False,
) -> None:
    """Write a checkpoint in FP8, in the convention of any writer.

    A reference implementation: codes and scales are bit for bit those of the recipe's upstream. Embeddings, norms,
    routers and output heads stay as they are, and the configuration says so.

    Exit codes: 0 done, 1 it could not be done, 2 wrong usage.
    """
    from fp8debug.analysis.checkpoint.quantize import quantize_checkpoint
    from fp8debug.cli.progress import progress
    from fp8debug.errors import UsageError, escape
    from fp8debug.recipes import parse_recipe

    if recipe is None:
        raise UsageError("--recipe is missing: expected a recipe such as current, rowwise, block, mxfp8 or nvfp4")
    if shard_size is not None and target.endswith(".safetensors"):
        raise UsageError(f"got --shard-size and one file, {target}; expected a folder as OUT, or no --shard-size")
    shard_bytes = None if shard_size is None else _bytes(shard_size)
    with progress(f"opening {escape(source)}") as stage:
        written = quantize_checkpoint(
            source,
            target,
            parse_recipe(recipe),
            dialect,
            include=include,
            exclude=exclude,
            shard_bytes=shard_bytes,
            force=force,
            told=stage,
        )
    _show(written, as_json=as_json)


def _bytes(text: str) -> int:
    from fp8debug.errors import UsageError

    fitting = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", text.strip(), re.IGNORECASE)
    n = int(float(fitting[1]) * _UNITS[fitting[2].upper()]) if fitting else 0
    if n <= 0:
        raise UsageError(f"--shard-size {text!r}: expected a size such as 2GB or 500MB")
    return n


def _show(written: Written, *, as_json: bool) -> None:
    if as_json:
        from fp8debug.cli.render.checkpoint_quantize import written_json

        sys.stdout.write(written_json(written))
        return
    from fp8debug.cli.render.checkpoint_quantize import render_written
    from fp8debug.cli.render.stream import write_stdout

    write_stdout(render_written(written))
