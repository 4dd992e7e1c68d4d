"""Going on in a run that is there already: the next segment, and the step that it begins with."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn

from fp8debug.errors import UsageError
from fp8debug.hooks.ranks import Launch
from fp8debug.hooks.recorder import Recorder
from fp8debug.hooks.roster import Roster
from fp8debug.parts import parse_part
from fp8debug.rundir import LayerInfo, Manifest, RunDir
from fp8debug.settings import LAUNCH_VARIABLE


@dataclass(frozen=True, slots=True)
class FirstStep:
    """The step that a segment begins with, and how it is known."""

    step: int
    source: str
    is_assumption: bool = False


@dataclass(frozen=True, slots=True)
class Resume:
    """What a session must know of the segments before its own."""

    run_dir: RunDir
    segment: int
    world_before: int
    layers_before: list[LayerInfo] = field(default_factory=list)
    roots_before: list[str] = field(default_factory=list)
    step_asked: int | None = None

    def first_step(self, modules: Iterable[nn.Module], told: int | None = None) -> FirstStep:
        """The first step of the segment; the optimizer's count is read on the host, which waits for it once.

        Args:
            modules: those whose parameters are trained.
            told: what a trainer says.
        """
        if told is not None:
            return FirstStep(told, "as the trainer counts")
        if self.step_asked is not None:
            return FirstStep(self.step_asked, "as --resume-step says")
        counted = optimizer_count({id(p) for module in modules for p in module.parameters(recurse=False)})
        if counted is not None:
            return FirstStep(counted, "as the optimizer counts")
        last = last_step(self.run_dir, self.segment)
        if last is None:
            return FirstStep(0, "nothing was recorded before and no optimizer has counted", is_assumption=True)
        return FirstStep(last + 1, "one after the last that was recorded; no optimizer has counted", is_assumption=True)


def begin_segment(
    resume: Resume,
    manifest: Manifest,
    roster: Roster,
    recorder: Recorder,
    told: int | None,
    *,
    say: Callable[[str], None],
    begun: Callable[[], None],
) -> int:
    """Find the first step of a resumed run; said, kept as events, and noted in the manifest.

    Args:
        told: the number that a trainer gives it.
        begun: called once the manifest knows the step.
    """
    modules = [m for layer in roster.layers if (m := roster.module(layer.name)) is not None]
    first = resume.first_step(modules, told)
    text = f"segment {resume.segment} begins at step {first.step}: {first.source}"
    recorder.event("resumed", text, step=first.step)
    if first.is_assumption:
        recorder.event("assumption", f"{text}; --resume-step says it for sure", step=first.step)
    if manifest.world_size != resume.world_before:
        ranks = f"{resume.world_before} ranks before, {manifest.world_size} now"
        recorder.event("resumed", f"segment {resume.segment}: {ranks}", step=first.step)
        text += f"; {ranks}"
    say(f"fp8debug: {text}")
    manifest.segments[-1]["first_step"] = first.step
    begun()
    return first.step


def go_on(run_dir: RunDir, new: Manifest, launch: Launch, step_asked: int | None) -> tuple[Manifest, Resume]:
    """The manifest of the run with one segment more, and what its session must know.

    Args:
        run_dir: the run to go on in.
        new: manifest of what begins now, as if it were a run of its own.
        launch: ranks of one launch write one segment, whichever of them comes first.

    Raises:
        UsageError: several ranks that share no name for their launch.
        Fp8DebugError: no run there, or one that cannot be read.
    """
    if new.world_size > 1 and launch.text is None:
        raise UsageError(
            f"--resume with {new.world_size} ranks that share no run id; expected a launch that they can tell from the "
            f"one before: use `fp8debug attach -- torchrun ...`, or set {LAUNCH_VARIABLE} to a new text for all of them"
        )
    old = run_dir.read_manifest()
    began = list(old.segments)
    last = began[-1] if began else {"segment": -1}
    if launch.text is None or last.get("launch") != launch.text:
        began.append({**new.segments[-1], "segment": int(last["segment"]) + 1, "first_step": None})
    manifest = replace(
        new,
        run_id=old.run_id,
        command=old.command,
        created_at=old.created_at,
        name=new.name or old.name,
        recipes=list(dict.fromkeys([*old.recipes, *new.recipes])),
        tensors=list(dict.fromkeys([*old.tensors, *new.tensors])),
        segments=began,
        layers=old.layers,
        roots=old.roots,
    )
    segment = int(began[-1]["segment"])
    return manifest, Resume(run_dir, segment, old.world_size, old.layers, old.roots, step_asked)


def optimizer_count(parameters: set[int]) -> int | None:
    """Steps that the live optimizers of these parameters (ids) have counted, as Adam does; None where none counts.

    Sharding may have replaced the parameters: then the only optimizer that counts is taken.
    """
    theirs: list[int] = []
    others: list[int] = []
    for optimizer in gc.get_objects():
        if issubclass(type(optimizer), torch.optim.Optimizer):
            count = _count(optimizer)
            if count is not None:
                owned = any(id(p) in parameters for group in optimizer.param_groups for p in group["params"])
                (theirs if owned else others).append(count)
    if theirs:
        return max(theirs)
    return others[0] if len(others) == 1 else None


def _count(optimizer: torch.optim.Optimizer) -> int | None:
    steps: list[Any] = [state.get("step") for state in optimizer.state.values() if isinstance(state, dict)]
    counts: list[int] = []
    for step in steps:
        if isinstance(step, (int, float, torch.Tensor)):
            with contextlib.suppress(RuntimeError, ValueError):  # no number in it
                counts.append(int(step))
    return max(counts, default=None)


def last_step(run_dir: RunDir, before: int) -> int | None:
    """The last finished step of any rank in the segments before the segment `before`."""
    by_rank: dict[str, list[str]] = {}
    for name in run_dir.part_names("steps"):
        part = parse_part(name)  # a merged file is of several ranks, each with a last step of its own
        by_rank.setdefault(name if part is None else str(part.rank), []).append(name)
    return max(
        (step for parts in by_rank.values() if (step := _last_step(run_dir, parts, before)) is not None), default=None
    )


def _last_step(run_dir: RunDir, parts: Sequence[str], before: int) -> int | None:
    for part in reversed(parts):
        with contextlib.suppress(OSError, pa.ArrowException):  # cut off; the one before it will do
            content = pa.BufferReader(run_dir.storage.read(part))
            columns = pq.read_table(content, columns=["segment", "step"]).to_pydict()
            steps = [step for segment, step in zip(*columns.values(), strict=True) if segment < before]
            if steps:
                return int(max(steps))
    return None
