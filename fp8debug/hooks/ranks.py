"""Who this process is among its peers, and which launch they all belong to. Asks nobody: there is no collective."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fp8debug.settings import LAUNCH_VARIABLE

_TORCHRUN = ("RANK", "WORLD_SIZE")
_SCHEDULERS = (
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


class _Spawned:
    """What `torch.multiprocessing` made this process, until its process group says more."""

    rank_and_world: tuple[int, int] | None = None
    launch: str | None = None


def note_spawned(rank: int, world: int, launch: str) -> None:
    """Say that this process is one of `world` that a script started, in a launch of that name."""
    _Spawned.rank_and_world, _Spawned.launch = (rank, world), launch


def rank_and_world(environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """This process's rank and the number of ranks; (0, 1) alone.

    From the process group once it is initialised, else from torchrun's variables, else from the index that the process
    was spawned with, else from SLURM's, Open MPI's and PMI's variables.
    """
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    if (found := _from_variables(environment, _TORCHRUN)) is not None:
        return found
    if _Spawned.rank_and_world is not None:
        return _Spawned.rank_and_world
    return next((found for pair in _SCHEDULERS if (found := _from_variables(environment, pair)) is not None), (0, 1))


def _from_variables(environment: Mapping[str, str], names: tuple[str, str]) -> tuple[int, int] | None:
    rank, world = (environment.get(name) for name in names)
    return None if rank is None or world is None else (int(rank), int(world))


@dataclass(frozen=True, slots=True)
class Launch:
    """One start of all ranks, as each of them names it alike."""

    name: str | None
    """None where they share nothing to name it by."""
    attempt: int = 0
    """How often torchrun has restarted the ranks."""

    @property
    def text(self) -> str | None:
        """The name with the attempt."""
        return None if self.name is None else f"{self.name}.{self.attempt}"

    def follows(self, text: object) -> bool:
        """Whether `text` names an earlier attempt of this launch."""
        return self.name is not None and text in [f"{self.name}.{attempt}" for attempt in range(self.attempt)]


def this_launch(environment: Mapping[str, str] = os.environ) -> Launch:
    """The launch that this process belongs to."""
    name = (
        _Spawned.launch
        or environment.get(LAUNCH_VARIABLE)
        or _scheduler_name(environment)
        or _torchrun_name(environment)
    )
    return Launch(name, int(environment.get("TORCHELASTIC_RESTART_COUNT") or 0))


def shared_run_id(environment: Mapping[str, str] = os.environ) -> str | None:
    """An id that all ranks of one launch see alike, None where there is none.

    SLURM's job and step, else a torchrun id that is not the default, else torchrun's own process where it started all
    ranks; the latter two with torchrun's count of restarts.
    """
    if (name := _scheduler_name(environment)) is not None:
        return name
    return Launch(_torchrun_name(environment), this_launch(environment).attempt).text


def _scheduler_name(environment: Mapping[str, str]) -> str | None:
    if "SLURM_JOB_ID" not in environment:
        return None
    return f"slurm-{environment['SLURM_JOB_ID']}.{environment.get('SLURM_STEP_ID', '0')}"


def _torchrun_name(environment: Mapping[str, str]) -> str | None:
    run_id = environment.get("TORCHELASTIC_RUN_ID", "none")
    if run_id != "none":
        return f"torchrun-{run_id}"
    started_all = environment.get("LOCAL_WORLD_SIZE", "some") == environment.get("WORLD_SIZE", "all")
    agent = _elastic_agent() if "TORCHELASTIC_RUN_ID" in environment and started_all else None
    return None if agent is None else f"torchrun-{process_name(agent)}"


def _elastic_agent() -> int | None:
    """The process that started the ranks: the nearest one above us without the variables it gives them."""
    process = os.getppid()
    try:
        while b"TORCHELASTIC_RUN_ID=" in Path(f"/proc/{process}/environ").read_bytes():
            process = int(_stat(process)[1])
    except (OSError, IndexError, ValueError):  # no /proc here, or it is not ours to read
        return None
    return process if process > 1 else None


def process_name(process: int) -> str:
    """`<pid>-<start time in clock ticks since boot>`: names a process of this machine for good."""
    try:
        return f"{process}-{_stat(process)[19]}"
    except (OSError, IndexError):
        return str(process)


def _stat(process: int) -> list[str]:
    """Fields of /proc/<pid>/stat from the third, the state, on; the second may hold anything, in parentheses."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
