"""An offline run of Weights & Biases, made with its own package: nothing is sent, nothing is written elsewhere."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from operator import attrgetter
from pathlib import Path
from typing import Any

from fp8debug.analysis.export.narrowing import Narrowing
from fp8debug.analysis.export.rows import nothing_selected
from fp8debug.analysis.export.scalars import readings, scalars_of
from fp8debug.analysis.run import Run
from fp8debug.errors import Fp8DebugError, UsageError

PROJECT = "fp8debug"


def write_wandb(run: Run, folder: Path, narrowing: Narrowing | None = None, *, force: bool = False) -> Path:
    """Write `wandb/offline-run-<time>-<id>` into `folder`, which is made if it is not there, and return its path.

    Each step is logged at its own time; the name is the run's, the id follows from it, so that a later export of the
    same run is the same run there.

    Raises:
        UsageError: the package is missing or in use, an earlier export is there (unless `force`), or nothing is
            selected.
        Fp8DebugError: nothing was recorded, or the files cannot be written.
    """
    run_id = re.sub(r"[^A-Za-z0-9_-]+", "-", run.manifest.run_id)[:64]
    earlier = list((folder / "wandb").glob(f"offline-run-*-{run_id}"))
    if earlier and not force:
        raise UsageError(f"-o {folder} holds an earlier export, wandb/{earlier[0].name}; add --force to replace it")
    new = [path for path in (folder / "wandb", folder) if not path.exists()]
    try:
        (folder / "wandb").mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fp8debug-", dir=folder) as place:
            with _private_environment(place):
                _log(run, place, run_id, narrowing or Narrowing())
            (made,) = (Path(place) / "wandb").glob("offline-run-*")
            shutil.rmtree(made / "logs", ignore_errors=True)  # of this machine, and of use to wandb alone
            for path in earlier:
                shutil.rmtree(path)
            return made.rename(folder / "wandb" / made.name)
    except OSError as error:
        raise Fp8DebugError(f"cannot write to {folder}: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            for path in new:
                path.rmdir()  # refused where something was written


def _log(run: Run, place: str, run_id: str, narrowing: Narrowing) -> None:
    rows = readings(run, narrowing)
    first = next(rows, None)
    if first is None:
        raise nothing_selected(run, narrowing=narrowing)
    with _started(run, place, run_id) as started:
        for step, of_step in itertools.groupby(itertools.chain([first], rows), key=attrgetter("step")):
            numbers: dict[str, float] = {}
            for reading in of_step:
                numbers |= {scalar.name: scalar.value for scalar in scalars_of(reading)}
                if reading.unix_s is not None:
                    numbers["_timestamp"] = reading.unix_s
            started.log(numbers, step=step)


@contextlib.contextmanager
def _started(run: Run, place: str, run_id: str) -> Iterator[Any]:
    """A run of theirs, finished at the end; their service ends with it unless somebody else uses it."""
    was_loaded = "wandb" in sys.modules
    wandb = _wandb()
    settings = wandb.Settings(
        mode="offline", silent=True, console="off", save_code=False, disable_git=True, disable_code=True, host="",
        x_disable_stats=True, x_disable_meta=True, x_disable_machine_info=True, x_save_requirements=False,
    )  # fmt: skip
    started = wandb.init(
        dir=place, project=PROJECT, id=run_id, name=run.manifest.name or run.manifest.run_id, config=_config(run),
        reinit="create_new", settings=settings,
    )  # fmt: skip
    try:
        yield started
    finally:
        started.finish()
        if not was_loaded:
            wandb.teardown()


def _wandb() -> Any:
    try:
        import wandb
    except ImportError as error:
        raise UsageError(
            "--to wandb-offline needs the package wandb, which is not installed: pip install 'fp8debug[wandb]'"
        ) from error
    return wandb


def _config(run: Run) -> dict[str, Any]:
    """What the manifest says, without what tells of people and machines: it is made to be uploaded."""
    told = asdict(run.manifest)
    for name in ("command", "segments", "layers", "status_reason"):
        told.pop(name)
    return {**told, "n_layers": len(run.manifest.layers)}


@contextlib.contextmanager
def _private_environment(place: str) -> Iterator[None]:
    """Within the block no variable of the user's steers wandb, and each folder it knows is below `place`."""
    before = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("WANDB_")}
    folders = ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR", "WANDB_ARTIFACT_DIR")
    os.environ.update(dict.fromkeys(folders, place), WANDB_MODE="offline", WANDB_ERROR_REPORTING="false")
    try:
        yield
    finally:
        for name in [name for name in os.environ if name.startswith("WANDB_")]:
            del os.environ[name]
        os.environ.update(before)
