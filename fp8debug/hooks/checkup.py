"""What would be recorded of a script, and what not: every GEMM of its first step beside what was recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from fp8debug.hooks.autoattach import AutoAttach, StopBeforeTraining
from fp8debug.hooks.census import GemmCensus, SeenGemm
from fp8debug.hooks.roots import living_roots
from fp8debug.hooks.selection import canonical_name

ATTENTION = "of two activations: `--attention` records it"
LEFT_OUT = "left out by the layer patterns"
UNSEEN = "its layer was found, but this GEMM was not seen"
UNKNOWN = "no weight of the model was recognised in it"


@dataclass(frozen=True, slots=True)
class GemmCheck:
    """Forward GEMMs of one module and shape, in the script's first step."""

    module: str
    operation: str
    batch: int
    m: int
    k: int
    n: int
    count: int
    why_not: str | None
    """Why they are not recorded; None: they are."""

    @property
    def n_multiplications(self) -> int:
        """Multiplications of all of them."""
        return self.count * self.batch * self.m * self.k * self.n


@dataclass(frozen=True, slots=True)
class FirstStep:
    """A script's first step."""

    counts: Counter[SeenGemm]
    names: dict[int, str]
    """id of a module → its name."""
    stepped: bool
    """False: the script ended before an optimizer stepped."""


def watch_first_step(hooks: AutoAttach, program: Callable[[], None]) -> FirstStep:
    """Run `program` until its first optimizer step is done, or to its end.

    Args:
        hooks: a capture that has been started; it is left open.

    Raises:
        StopBeforeTraining: the capture has nothing to record.
        BaseException: whatever the program raises.
    """
    stop = _Stop(hooks)
    handle = register_optimizer_step_post_hook(stop)
    with GemmCensus() as census:
        try:
            program()
        except _FirstStepDone:
            pass
        finally:
            handle.remove()
    return FirstStep(census.counts, stop.names or _names(hooks), bool(stop.names))


def compare(seen: FirstStep, hooks: AutoAttach, recorded: Collection[str]) -> list[GemmCheck]:
    """Every GEMM of the step, and why it is not recorded if it is not.

    Args:
        recorded: names of the layers of which anything was recorded.
    """
    attention = {info.name.rpartition(".")[0] for info in hooks.known_layers if info.kind == "attention"}
    checks = []
    for gemm, count in seen.counts.items():
        name = _name(gemm.module, seen.names)
        owned = [layer.name for layer in hooks.layers if layer.module is gemm.module]
        why = _why_not(owned, hooks.takes, recorded, is_attention=name in attention)
        checks.append(GemmCheck(name, *gemm[1:], count, why))
    return checks


def _why_not(
    owned: Collection[str], takes: Callable[[str], bool], recorded: Collection[str], *, is_attention: bool
) -> str | None:
    if not owned:
        return ATTENTION if is_attention else UNKNOWN
    taken = [name for name in owned if takes(name)]
    if not taken:
        return LEFT_OUT
    return None if any(_is_recorded(name, recorded) for name in taken) else UNSEEN


def _is_recorded(name: str, recorded: Collection[str]) -> bool:
    """Whether the layer, or one of its experts, is."""
    return name in recorded or any(other.startswith(f"{name}[") for other in recorded)


class _FirstStepDone(StopBeforeTraining):
    """Out of the script: what there is to see has been seen."""


class _Stop:
    def __init__(self, hooks: AutoAttach) -> None:
        self._hooks = hooks
        self.names: dict[int, str] = {}
        """Of the modules that lived when the optimizer stepped: on the way out the script's own go."""

    def __call__(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self.names = _names(self._hooks)
        raise _FirstStepDone(0)


def _names(hooks: AutoAttach) -> dict[int, str]:
    """id of a live module → its name: of layers as they are recorded, of others as their model has them."""
    names = {id(module): canonical_name(raw) for root in living_roots() for raw, module in root.named_modules()}
    return names | {id(layer.module): layer.name for layer in hooks.layers if layer.kind != "parameter"}


def _name(module: nn.Module | None, names: dict[int, str]) -> str:
    if module is None:
        return "(outside any module)"
    return names.get(id(module)) or type(module).__name__
