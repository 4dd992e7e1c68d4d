"""The manifest of a run that begins now."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime

from fp8debug.hooks.place import Place
from fp8debug.hooks.plan import CapturePlan
from fp8debug.rundir import Manifest

_PACKAGES = ("fp8debug", "torch", "numpy", "pyarrow", "numba", "transformers", "torchao", "accelerate", "lightning")


def new_manifest(plan: CapturePlan, *, command: Sequence[str], place: Place, engine: str) -> Manifest:
    """Describe a run that is about to be recorded at `place`."""
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    options = asdict(plan.options)
    return Manifest(
        run_id=place.path.name,
        command=list(command),
        created_at=now,
        name=plan.options.name,
        versions=installed_versions(),
        git_commit=git_commit(),
        world_size=place.world,
        options={k: v for k, v in options.items() if k != "out"} | {"engine": engine},  # "out" is where this file is
        recipes=[recipe.text for recipe in plan.recipes],
        tensors=list(plan.options.tensors),
        segments=[
            {
                "segment": 0,
                "started_at": now,
                "first_step": 0,
                "command": list(command),
                "launch": place.launch.text,
                "rank": place.rank,
            }
        ],
    )


def installed_versions() -> dict[str, str]:
    """Versions of Python and of the packages that numbers depend on, where installed."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def git_commit() -> str | None:
    """Commit of the working directory, None where there is no repository or no git."""
    try:
        answer = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None if answer.returncode == 0 else None
