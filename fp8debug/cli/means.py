"""Options of the verbs that compute much: by what, and in how much memory."""

from __future__ import annotations

from typing import Annotated

import typer

Engine = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="ENGINE",
        help="What computes the heavy part: duckdb, ray (on this machine's cores) or ray:ADDRESS. [duckdb]",
    ),
]
MemoryLimit = Annotated[
    str | None,
    typer.Option(
        "--memory-limit",
        metavar="SIZE",
        help="What the analysis may take, such as 500MB or 2GB; the rest goes to temporary files. "
        "[4GB, or 80 % of the machine where that is less]",
    ),
]
