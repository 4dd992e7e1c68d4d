"""Who this process is among its peers, and which run directory they share."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from fp8debug.errors import UsageError
from fp8debug.rundir import LATEST_NAME, MANIFEST_NAME, RUNS_FOLDER, RunDir, default_run_path, safe_name
from fp8debug.settings import RUN_DIR_VARIABLE

_RANK_VARIABLES = ("RANK", "SLURM_PROCID")
_WORLD_VARIABLES = ("WORLD_SIZE", "SLURM_NTASKS")


def rank_and_world(environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """This process's rank and the number of ranks, from torchrun's or SLURM's variables; (0, 1) alone."""
    rank = next((int(environment[v]) for v in _RANK_VARIABLES if v in environment), 0)
    world = next((int(environment[v]) for v in _WORLD_VARIABLES if v in environment), 1)
    return rank, world


def shared_run_id(environment: Mapping[str, str] = os.environ) -> str | None:
    """An id that all ranks of one launch see alike: SLURM job and step, or a torchrun id that is not the default."""
    if "SLURM_JOB_ID" in environment:
        return f"slurm-{environment['SLURM_JOB_ID']}.{environment.get('SLURM_STEP_ID', '0')}"
    run_id = environment.get("TORCHELASTIC_RUN_ID", "none")
    if run_id != "none":
        return f"torchrun-{run_id}.{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    return None


def resolve_run_path(out: str | None, script: str, name: str | None, world: int) -> Path:
    """Where this run is recorded. Ranks never invent it from their clocks.

    Raises:
        UsageError: several ranks and nothing that they share to name the directory by.
    """
    given = out or os.environ.get(RUN_DIR_VARIABLE)
    if given:
        return Path(given)
    if world == 1:
        return _free_name(default_run_path(script, datetime.now(), name), "-")
    shared = shared_run_id()
    if shared is None:
        raise UsageError(
            f"{world} ranks share no run id (torchrun's is the default one); expected one directory for all: give "
            f"--out DIR, set {RUN_DIR_VARIABLE}, or launch with torchrun --rdzv-id NAME"
        )
    return Path(RUNS_FOLDER) / f"{safe_name(Path(script).stem)}-{safe_name(shared)}"


def check_run_path(path: Path, *, force: bool, rank: int = 0, world: int = 1) -> None:
    """Refuse a path that another run occupies; touches nothing.

    The ranks of one launch come in any order: what the others have put there is no other run.

    Raises:
        UsageError: another run is there and `force` is not given, one is being written, or the path is a file.
    """
    if path.exists() and not path.is_dir():
        raise UsageError(f"--out {path} is a file; expected a directory to create or an empty one")
    is_live = _has_live_writer(path)
    if is_live and rank == 0:
        raise UsageError(f"--out {path} is being written by another process; give another --out")
    if _is_occupied(path, world) and not is_live and not force:
        raise UsageError(
            f"--out {path} is not empty; two runs never mix in one directory: give another --out, or --force to "
            "rename the old one"
        )


def _is_occupied(path: Path, world: int) -> bool:
    if world > 1:
        return (path / MANIFEST_NAME).exists()  # rank 0 writes it first of all
    return path.is_dir() and any(path.iterdir())


def _has_live_writer(path: Path) -> bool:
    try:
        with RunDir(path).lock_path(0).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no run there, or a file system without locks
        return False
    return False


def prepare_run_path(path: Path, *, force: bool, rank: int = 0, world: int = 1) -> Path | None:
    """Make the directory. An old run there is renamed by rank 0 when `force`, never deleted; returns its new name.

    Raises:
        UsageError: as check_run_path.
    """
    check_run_path(path, force=force, rank=rank, world=world)
    moved = None
    if rank == 0 and _is_occupied(path, world):
        moved = _free_name(path.with_name(f"{path.name}.old"), "")
        shutil.move(path, moved)
    path.mkdir(parents=True, exist_ok=True)
    return moved


def point_latest(path: Path) -> None:
    """Let `<runs folder>/latest` point to `path`, if it is in a runs folder and the file system can."""
    link = path.parent / LATEST_NAME
    if path.parent.name != RUNS_FOLDER or (link.exists() and not link.is_symlink()):
        return
    temporary = path.parent / f".{LATEST_NAME}.{os.getpid()}"
    with contextlib.suppress(OSError):  # a convenience: the newest run is also found without it
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(path.name)
        temporary.replace(link)


def _free_name(path: Path, joint: str) -> Path:
    candidate, number = path, 2
    while candidate.exists():
        candidate, number = path.with_name(f"{path.name}{joint}{number}"), number + 1
    return candidate
