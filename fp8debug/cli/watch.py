"""`fp8debug watch`: follow a run while it is written."""

from __future__ import annotations

from typing import Annotated

import typer

NEAR_S, FAR_S = 2.0, 15.0
"""Seconds between two looks: in a folder, and in an object store, where each look is some twenty requests."""


def watch(
    run_dir: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN_DIR",
            help="Run directory or URL; need not be there yet. [the newest run in fp8debug-runs that goes on, or the "
            "next one that begins]",
        ),
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option(
            "--interval", metavar="S", min=0.1, max=3600, help="Look every S seconds. [2; in an object store 15]"
        ),
    ] = None,
    top: Annotated[int, typer.Option("--top", metavar="N", min=1, help="Show so many entries of each list.")] = 8,
    once: Annotated[bool, typer.Option("--once", help="Show what is known now and leave; waits for nothing.")] = False,
) -> None:
    """Follow a run while it is written.

    Shows step, loss and gradient norm, the layers that suffer most in the last sampled step, scale gaps, values that
    are not finite, and events. It may be started before the training, and ends with it. In a pipe it prints one line
    for each new step or event.

    Exit codes: 0 the run has ended, 1 it could not be read, 2 wrong usage, 130 left with Ctrl-C.
    """
    from fp8debug.analysis.live import Follower
    from fp8debug.cli.watching import follow, show_once

    if once:
        show_once(run_dir, top)
        return
    with Follower(run_dir, top=top) as follower:
        follow(follower, interval or (FAR_S if follower.is_far else NEAR_S))
