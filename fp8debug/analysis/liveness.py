"""Whether the process that writes a run still lives: told by its lock, not by what it last said about itself."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fp8debug.rundir import Manifest, RunDir

_LOCK_NAME = re.compile(r"rank=(\d+)\.lock")


@dataclass(frozen=True, slots=True)
class Liveness:
    """The status of a run as it is now.

    `status` is the manifest's, except that `running` becomes `killed` when no writer holds its lock any more.
    `dead_ranks` are the ranks without a writer in a run that otherwise goes on.
    """

    status: str
    dead_ranks: tuple[int, ...] = ()


def liveness(run: RunDir, manifest: Manifest) -> Liveness:
    """Look at the locks of `run`; only a manifest that says `running` can be contradicted."""
    if manifest.status != "running":
        return Liveness(manifest.status)
    held = {int(m[1]): run.storage.is_held(m[0]) for n in run.storage.top_names() if (m := _LOCK_NAME.fullmatch(n))}
    dead = tuple(sorted(rank for rank, is_held in held.items() if is_held is False))
    if held and len(dead) == len(held):
        return Liveness("killed")
    return Liveness("running", dead)
