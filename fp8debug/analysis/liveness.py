"""Whether the process that writes a run still lives: told by its lock, not by what it last said about itself."""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from pathlib import Path

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
    held = {rank: _is_held(path) for rank, path in _locks(run)}
    dead = tuple(sorted(rank for rank, is_held in held.items() if is_held is False))
    if held and len(dead) == len(held):
        return Liveness("killed")
    return Liveness("running", dead)


def _locks(run: RunDir) -> list[tuple[int, Path]]:
    return [
        (int(match.group(1)), path)
        for path in run.path.glob("rank=*.lock")
        if (match := _LOCK_NAME.fullmatch(path.name)) is not None
    ]


def _is_held(path: Path) -> bool | None:
    """True: a process holds the lock; False: nobody does; None: it cannot be told on this system."""
    try:
        import fcntl
    except ImportError:
        return None
    try:
        with path.open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return True if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else None
    return False
