"""Which run directory the ranks of one launch share, and whether they may have it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from fp8debug.config import CaptureOptions
from fp8debug.errors import Fp8DebugError, UsageError
from fp8debug.hooks.ranks import Launch, rank_and_world, shared_run_id, this_launch
from fp8debug.rundir import (
    LATEST_NAME,
    MANIFEST_NAME,
    RUNS_FOLDER,
    RunDir,
    default_run_path,
    latest_name,
    safe_name,
)
from fp8debug.settings import RUN_DIR_VARIABLE
from fp8debug.storage import ObjectPath, RunPath, run_path, storage_of

WAIT_S = 60.0
"""How long a rank waits for rank 0 to rename an old run."""
_TRIAL = ".fp8debug-may-write"
_LOOK_AGAIN_S = 2.0


class NoSharedRun(UsageError):
    """Several ranks, and nothing that they share to name a directory by."""


def resolve_run_path(out: str | None, script: str, name: str | None, world: int) -> RunPath:
    """Where this run is recorded. Ranks never invent it from their clocks.

    Raises:
        NoSharedRun: several ranks and nothing that they share to name the directory by.
    """
    given = out or os.environ.get(RUN_DIR_VARIABLE)
    if given:
        return run_path(given)
    if world == 1:
        return _free_name(default_run_path(script, datetime.now(), name), "-")
    shared = shared_run_id()
    if shared is None:
        raise NoSharedRun(
            f"{world} ranks share no run id (torchrun's is the default one); expected one directory for all: give "
            f"--out DIR, set {RUN_DIR_VARIABLE}, or launch with `fp8debug attach -- torchrun ...` or torchrun "
            "--rdzv-id NAME"
        )
    return Path(RUNS_FOLDER) / f"{safe_name(Path(script).stem)}-{safe_name(shared)}"


@dataclass(frozen=True, slots=True)
class Place:
    """Where this process records."""

    path: RunPath
    rank: int
    world: int
    launch: Launch
    resumes: bool = False
    """The run that is there goes on: as was asked, or because torchrun has started the ranks again."""
    step_asked: int | None = None

    def check(self, *, force: bool) -> None:
        """Refuse what cannot be; see check_run_path."""
        if self.resumes:
            self._check_resumed()
        else:
            check_run_path(self.path, force=force, rank=self.rank, world=self.world, launch=self.launch)

    def prepare(self, *, force: bool) -> Path | None:
        """Make the directory; see prepare_run_path."""
        if self.resumes:
            self._check_resumed()
            return None
        return prepare_run_path(self.path, force=force, rank=self.rank, world=self.world, launch=self.launch)

    def _check_resumed(self) -> None:
        if last_segment(self.path) is None:
            raise UsageError(
                f"--resume {self.path} holds no run ({MANIFEST_NAME} is missing); expected the directory of a run to "
                "go on in; `fp8debug runs` lists the runs there are"
            )
        is_live = _lives_on(self.path, self.rank) if isinstance(self.path, ObjectPath) else _has_live_writer(self.path)
        if is_live and (self.rank == 0 or isinstance(self.path, ObjectPath)):
            raise UsageError(f"--resume {self.path} is being written by another process; wait for its end, or stop it")


def find_place(options: CaptureOptions, script: str) -> Place:
    """Where to record, by the options and by what the launcher tells.

    Raises:
        UsageError: options that contradict each other, or ranks that share no run id.
    """
    rank, world = rank_and_world()
    launch = this_launch()
    if options.resume is None:
        path = resolve_run_path(options.out, script, options.name, world)
        segment = last_segment(path) if launch.attempt else None
        restarted = segment is not None and _goes_on(segment, launch)
        return Place(path, rank, world, launch, resumes=restarted)
    if options.force:
        raise UsageError("--resume and --force were both given; expected one: to go on in a run, or to rename it")
    if options.out is not None and run_path(options.out) != run_path(options.resume):
        raise UsageError(
            f"--resume {options.resume} and --out {options.out} name two directories; expected --resume alone"
        )
    return Place(run_path(options.resume), rank, world, launch, resumes=True, step_asked=options.resume_step)


def _goes_on(segment: dict[str, Any], launch: Launch) -> bool:
    """Whether the run that ends with `segment` goes on: torchrun started the ranks again, and another may be first."""
    theirs = segment.get("launch")
    return launch.follows(theirs) or (theirs is not None and theirs == launch.text and segment.get("segment", 0) > 0)


def claim_for_spawned(options: CaptureOptions, script: str) -> RunPath:
    """Make the directory of processes that a script starts; another name where one is there, its own run's even.

    An old run is renamed when asked for, unless this process records there.

    Raises:
        UsageError: no directory can be made there.
    """
    path = resolve_run_path(options.out, script, options.name, 1)
    if _has_live_writer(path) or (not options.force and is_occupied(path, 0, 1, this_launch())):
        path = _free_name(path, "-")
    prepare_run_path(path, force=options.force)
    return path


def check_run_path(path: RunPath, *, force: bool, rank: int = 0, world: int = 1, launch: Launch | None = None) -> None:
    """Refuse a path that another run occupies, or that cannot be made; leaves everything as it is.

    The ranks of one launch come in any order: what the others have put there is no other run.

    Raises:
        UsageError: another run is there and `force` is not given, one is being written, the path is a file, or no
            directory can be made there.
    """
    if isinstance(path, ObjectPath):
        _check_can_write(path, force=force)
    elif path.exists() and not path.is_dir():
        raise UsageError(f"--out {path} is a file; expected a directory to create or an empty one")
    is_live = _has_live_writer(path)
    if is_live and rank == 0:
        raise UsageError(f"--out {path} is being written by another process; give another --out")
    if not is_live and not force and is_occupied(path, rank, world, launch or this_launch()):
        renaming = "" if isinstance(path, ObjectPath) else "--force to rename the old one, "  # no prefix can be renamed
        raise UsageError(
            f"--out {path} is not empty; two runs never mix in one directory: give another --out, {renaming}"
            "or --resume to go on in it"
        )
    if isinstance(path, ObjectPath):  # there are no folders to make
        return
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    _make(path)
    if world == 1:  # other ranks may be about to put something there
        for folder in missing:
            with contextlib.suppress(OSError):
                folder.rmdir()


def _check_can_write(path: ObjectPath, *, force: bool) -> None:
    if force:
        raise UsageError(
            f"--force renames an old run, which cannot be done in an object store; got --out {path}, expected one that "
            "is free: give another --out, or --resume to go on in it"
        )
    storage = storage_of(path)
    try:
        storage.replace(_TRIAL, b"")
        storage.remove(_TRIAL)
    except OSError as error:
        raise UsageError(
            f"--out {path} cannot be written to: {error}; expected a bucket that is there and ours"
        ) from error


def _make(path: Path) -> None:
    try:
        with contextlib.suppress(FileNotFoundError):  # another rank takes away again what it has made to try
            path.mkdir(parents=True, exist_ok=True)
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--out {path} cannot be created: {error.strerror or error}; expected a place to write to: give another "
            "--out"
        ) from error
    if path.exists() and not os.access(path, os.W_OK | os.X_OK):  # gone: another rank tries whether it can be made
        raise UsageError(f"--out {path} cannot be written to; give another --out")


def is_occupied(path: RunPath, rank: int, world: int, launch: Launch) -> bool:
    """Whether something is at `path` that other than this launch has put there."""
    run = RunDir(path)
    if world == 1:
        return _is_there(path) if isinstance(path, ObjectPath) else path.is_dir() and any(path.iterdir())
    if run.storage.exists(run.rank_name(rank)):  # there is one process of this rank in a launch
        return True
    segment = last_segment(path)
    if segment is None:
        return False
    theirs = segment.get("launch")
    if launch.text is not None and theirs is not None:
        return bool(theirs != launch.text)
    return bool(segment.get("rank", 0) == 0)  # one that another rank has written is not finished: rank 0 may come


def last_segment(path: RunPath) -> dict[str, Any] | None:
    """The last entry of a run's list of segments; None without a run, empty where it cannot be read."""
    try:
        document = json.loads(RunDir(path).storage.read(MANIFEST_NAME).decode("utf-8"))
        segment = document["segments"][-1]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError):
        return {}
    return segment if isinstance(segment, dict) else {}


def _has_live_writer(path: RunPath) -> bool:
    run = RunDir(path)
    return run.storage.is_held(run.lock_name(0)) is True


def _lives_on(path: ObjectPath, rank: int) -> bool:
    """Whether the writer of a rank lives; waits for its next heartbeat where none says that it died.

    A training that is started again elsewhere, since its machine went, finds the lock as if it were held.
    """
    run = RunDir(path)
    name = run.lock_name(rank)
    seen = run.storage.stamp(name)
    while run.storage.is_held(name):
        if run.storage.stamp(name) != seen:
            return True
        time.sleep(_LOOK_AGAIN_S)
    return False


def prepare_run_path(
    path: RunPath, *, force: bool, rank: int = 0, world: int = 1, launch: Launch | None = None, wait_s: float = WAIT_S
) -> Path | None:
    """Make the directory. An old run there is renamed by rank 0 when `force`, never deleted; returns its new name.

    Another rank that finds an old run waits until rank 0 has renamed it.

    Raises:
        UsageError: as check_run_path.
        Fp8DebugError: rank 0 did not rename the old run in `wait_s` seconds.
    """
    launch = launch or this_launch()
    check_run_path(path, force=force, rank=rank, world=world, launch=launch)
    if isinstance(path, ObjectPath):
        return None
    moved = None
    if rank == 0 and is_occupied(path, rank, world, launch):
        moved = _free_name(path.with_name(f"{path.name}.old"), "")
        shutil.move(path, moved)
    elif rank:
        _wait_for_rank_0(path, rank, world, launch, wait_s)
    _make(path)
    return moved


def _wait_for_rank_0(path: Path, rank: int, world: int, launch: Launch, wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    while is_occupied(path, rank, world, launch) and not _has_live_writer(path):
        if time.monotonic() > deadline:
            raise Fp8DebugError(
                f"rank {rank} waited {wait_s:.0f} s for rank 0 to rename the old run at {path}; is rank 0 started with "
                "--force too? Give --out a new directory"
            )
        time.sleep(0.05)


def point_latest(path: RunPath) -> None:
    """Let `<runs folder>/latest` point to `path`, if it is in a runs folder and the file system can.

    In an object store `latest` is an object with the name of the run; one that is something else is left alone.
    """
    if isinstance(path, ObjectPath):
        with contextlib.suppress(OSError):
            _name_latest(path)
        return
    link = path.parent / LATEST_NAME
    if path.parent.name != RUNS_FOLDER or (link.exists() and not link.is_symlink()):
        return
    temporary = path.parent / f".{LATEST_NAME}.{os.getpid()}"
    with contextlib.suppress(OSError):  # a convenience: the newest run is also found without it
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(path.name)
        temporary.replace(link)


def _name_latest(path: ObjectPath) -> None:
    if len(path.parts) < 4:  # a run in the root of a bucket: that is no folder of runs
        return
    folder = storage_of(path.parent)
    if folder.exists(LATEST_NAME) and latest_name(path.parent) is None:
        return
    folder.replace(LATEST_NAME, f"{path.name}\n".encode())


def _is_there(path: RunPath) -> bool:
    return bool(storage_of(path).names()) if isinstance(path, ObjectPath) else path.exists()


_AnyPath = TypeVar("_AnyPath", Path, RunPath)


def _free_name(path: _AnyPath, joint: str) -> _AnyPath:
    candidate, number = path, 2
    while _is_there(candidate):
        candidate, number = path.with_name(f"{path.name}{joint}{number}"), number + 1
    return candidate
