"""What this machine and this installation let a capture do."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
from dataclasses import dataclass

import torch

from fp8debug.hooks.manifest import installed_versions
from fp8debug.hooks.measure.loading import best_engine
from fp8debug.hooks.ranks import rank_and_world
from fp8debug.rundir import RUNS_FOLDER


@dataclass(frozen=True, slots=True)
class Ability:
    """Something that a capture could use."""

    name: str
    is_there: bool
    meaning: str
    """What it gives, or what is missing for it."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The answer to `can it work here`."""

    versions: dict[str, str]
    engine: str
    """What counts: numba | torch."""
    devices: list[str]
    rank: int
    world_size: int
    runs_folder: str
    is_writable: bool
    free_bytes: int
    backends: list[Ability]
    trainers: list[Ability]


def look_around() -> Environment:
    """Find out."""
    rank, world = rank_and_world()
    return Environment(
        versions=installed_versions(),
        engine=best_engine(),
        devices=_devices(),
        rank=rank,
        world_size=world,
        runs_folder=RUNS_FOLDER,
        is_writable=os.access(RUNS_FOLDER if os.path.isdir(RUNS_FOLDER) else ".", os.W_OK),
        free_bytes=shutil.disk_usage(".").free,
        backends=_backends(),
        trainers=_trainers(),
    )


def _devices() -> list[str]:
    found = [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
    return ["cpu", *found]


def _backends() -> list[Ability]:
    return [
        Ability("modules", True, "hooks on nn.Linear, Conv1D, and Megatron's parallel layers"),
        Ability("dispatch", True, "every GEMM that runs: bare parameters, experts, attention on request"),
        _needs("torchao", "torchao", "payloads of Float8Linear"),
        _transformer_engine(),
        _compiler(),
    ]


def _transformer_engine() -> Ability:
    gives = "operands and payloads of Transformer Engine's layers"
    missing = [name for name in ("transformer_engine", "nvdlfw_inspect") if importlib.util.find_spec(name) is None]
    return Ability("transformer_engine", not missing, f"not installed: {', '.join(missing)}" if missing else gives)


def _compiler() -> Ability:
    found = next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)
    if found is None:
        return Ability("torch.compile", False, "no C++ compiler here, which inductor needs on the CPU")
    return Ability("torch.compile", True, "an operator in the compiled graph takes the place of hooks")


def _trainers() -> list[Ability]:
    return [
        _needs("transformers", "transformers", "fp8debug.integrations.hf.Fp8DebugCallback"),
        _needs("lightning", "lightning", "fp8debug.integrations.lightning.Fp8DebugCallback"),
        _needs("accelerate", "accelerate", "attach before or after `prepare`"),
    ]


def _needs(name: str, module: str, gives: str) -> Ability:
    if importlib.util.find_spec(module) is None:
        return Ability(name, False, "not installed")
    return Ability(name, True, f"{importlib.metadata.version(module)}: {gives}")
