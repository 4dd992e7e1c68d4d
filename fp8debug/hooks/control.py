"""Changing one's mind: every rank looks for a new control file once a step, and follows it from the next step on.

It looks after an optimizer step, when no pass of the model is under way, so that what is new is whole from its first
step; where no optimizer stepped, when the step ends. A file that cannot be followed changes nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn

from fp8debug.config import KNOWN_TENSORS
from fp8debug.control import CHANGEABLE, CONTROL_NAME, Control, read_control, signature, value_words
from fp8debug.errors import UsageError, some
from fp8debug.hooks.backends.base import FoundLayer
from fp8debug.hooks.clock import in_backward
from fp8debug.hooks.errands import Errands
from fp8debug.hooks.observation import Observation
from fp8debug.hooks.plan import CapturePlan
from fp8debug.hooks.recorder import Recorder
from fp8debug.hooks.roster import Roster
from fp8debug.hooks.say import count_layers
from fp8debug.hooks.schedule import Schedule
from fp8debug.hooks.selection import Selection
from fp8debug.rundir import Manifest, RunDir
from fp8debug.settings import SETTINGS
from fp8debug.storage.base import Stamp

FAR_S = 10.0
"""How often an object store is asked for a control file."""

Hook = Callable[[nn.Module, Sequence[FoundLayer]], None]
"""Begins to record layers of a model."""


class _Found(NamedTuple):
    """A control file, or why it is none."""

    stamp: Stamp
    content: Control | UsageError


class _Candidate(NamedTuple):
    """A layer that is recorded or might be; the model keeps it, we do not."""

    model: weakref.ref[nn.Module]
    module: weakref.ref[nn.Module]
    layer: FoundLayer


class RunControl:
    """Follows the control file of one run, for one rank."""

    def __init__(
        self,
        run_dir: RunDir,
        manifest: Manifest,
        observation: Observation,
        recorder: Recorder,
        roster: Roster,
        *,
        hook: Hook,
        changed: Callable[[], None],
        say: Callable[[str], None],
        errands: Errands,
    ) -> None:
        """Args:
        changed: called after each change that was followed or refused.
        """
        self._run_dir = run_dir
        self._path = run_dir.path / CONTROL_NAME
        self._manifest = manifest
        self._observation = observation
        self._recorder = recorder
        self._roster = roster
        self._hook = hook
        self._changed = changed
        self._say = say
        self._base = observation.plan
        self._candidates: dict[str, _Candidate] = {}
        self._hooked: set[str] = set()
        self._seen = signature(self._path)  # of an earlier segment: not ours
        self._is_far = errands.is_far
        self._found: _Found | None = None
        errands.every(FAR_S, self._look_far)
        self._looked_at: int | None = None
        self._raw_done = self._seen_raw()
        self.state: dict[str, Any] = {}
        """What this rank has made of the file, for `rank=R.json`."""

    def add(self, model: nn.Module, found: Sequence[FoundLayer], taken: Iterable[str]) -> None:
        """Layers of `model` that there are, and the names of those that are hooked."""
        nobody = nn.Module()
        for layer in found:
            kept = replace(layer, module=nobody)
            self._candidates[layer.name] = _Candidate(weakref.ref(model), weakref.ref(layer.module), kept)
        self._hooked |= set(taken)

    def after_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer has stepped."""
        if self._observation.active and not in_backward():  # an optimizer that steps inside backward
            self.look()

    def look(self, step: int | None = None) -> None:
        """Look for a new file, once a step; `step` is the one that is over, by default the one under way."""
        step = self._observation.clock.step if step is None else step
        if step == self._looked_at:
            return
        self._looked_at = step
        found, self._found = (self._found, None) if self._is_far else (self._newest(), None)
        if found is None or found.stamp == self._seen:
            return
        self._seen = found.stamp
        try:
            if isinstance(found.content, UsageError):
                raise found.content
            self._follow(found.content, step)
        except UsageError as error:
            self._recorder.event("control_refused", str(error), step=step)
            self.state = {**self.state, "refused": str(error), "refused_at_step": step}
            self._say(f"fp8debug: control refused, the old settings stay: {error}")
        self._changed()

    def _newest(self) -> _Found | None:
        """The file, when it is another one than that which was seen."""
        stamp = signature(self._path)
        if stamp is None or stamp == self._seen:
            return None
        try:
            return _Found(stamp, read_control(self._path))
        except UsageError as error:
            return _Found(stamp, error)

    def _look_far(self) -> None:
        """The same in an object store, on another thread; what cannot be read is looked for again."""
        found = self._newest()
        if found is None:
            return
        is_unread = isinstance(found.content, UsageError) and isinstance(found.content.__cause__, OSError)
        if not is_unread:
            self._found = found

    def _follow(self, control: Control, step: int) -> None:
        """Raises UsageError before anything is changed."""
        before = self._observation.plan
        after = self._plan(control)
        layers = [layer.name for layer in self._roster.layers]
        self._require_match(after.selection, layers)
        stopped = sorted(
            name for name in self._hooked if before.selection.takes(name) and not after.selection.takes(name)
        )
        lost_tensors = [t for t in before.options.tensors if t not in after.options.tensors]
        self._recorder.break_histories(
            lambda layer, tensor: not after.selection.takes(layer) or tensor not in after.options.tensors
        )
        raw_now = control.raw_now > self._raw_done
        self._raw_done = max(self._raw_done, control.raw_now)
        left_out = frozenset(name for name in layers if not after.selection.takes(name))
        self._observation.change(after, from_step=step + 1, left_out=left_out, raw_step=step + 1 if raw_now else None)
        started = self._hook_new(before, after)
        self._tell(control, step, before, after, started, stopped, raw_now=raw_now)
        self._note_in_manifest(control, step, after, stopped, lost_tensors)
        self.state = {"serial": control.serial, "step": step + 1}

    def _plan(self, control: Control) -> CapturePlan:
        options = replace(self._base.options, **control.options)
        if "every" in control.options:  # steps that were named one by one would win
            options = replace(options, steps=None)
        return replace(
            self._observation.plan,
            options=options,
            selection=Selection.from_regexes(options.layers, options.exclude),
            schedule=replace(Schedule.from_options(options), keep=self._observation.plan.schedule.keep),
        )

    def _require_match(self, selection: Selection, layers: Sequence[str]) -> None:
        """Raise a UsageError when nothing is taken: here, or, as under pipeline parallelism, on any rank."""
        if any(map(selection.takes, layers)):
            return
        names = dict.fromkeys([*layers, *(layer.name for rank in self._run_dir.read_ranks() for layer in rank.layers)])
        if not any(map(selection.takes, names)):
            raise UsageError(selection.explain_no_match(list(names)))

    def _hook_new(self, before: CapturePlan, after: CapturePlan) -> list[str]:
        """Hook what is taken now and was never hooked; returns its names."""
        # The gradient of an input is this layer's own only when the input was set apart in the forward pass.
        needs_again = "dx" in after.options.tensors and "dx" not in before.options.tensors
        by_model: dict[int, tuple[nn.Module, list[FoundLayer]]] = {}
        started = []
        for name, candidate in self._candidates.items():
            is_new = name not in self._hooked
            again = needs_again and candidate.layer.backend == "modules"
            model, module = candidate.model(), candidate.module()
            if not after.selection.takes(name) or not (is_new or again) or model is None or module is None:
                continue
            by_model.setdefault(id(model), (model, []))[1].append(replace(candidate.layer, module=module))
            if is_new:
                started.append(name)
        for model, layers in by_model.values():
            self._hook(model, layers)
            self._hooked |= {layer.name for layer in layers}
        return started

    def _tell(
        self,
        control: Control,
        step: int,
        before: CapturePlan,
        after: CapturePlan,
        started: Sequence[str],
        stopped: Sequence[str],
        *,
        raw_now: bool,
    ) -> None:
        parts = [
            f"{SETTINGS[name].key} {value_words(name, old)} -> {value_words(name, new)}"
            for name in CHANGEABLE
            if (old := getattr(before.options, name)) != (new := getattr(after.options, name))
        ]
        if started:
            parts.append(f"{count_layers(len(started), 'new')} hooked ({some(started)})")
        if stopped:
            parts.append(
                f"{count_layers(len(stopped))} no longer recorded ({some(stopped)}); should they come back, their "
                "histories are incomplete"
            )
        if raw_now:
            parts.append("raw values of that step")
        text = f"control {control.serial}, from step {step + 1} on: {'; '.join(parts) or 'nothing new'}"
        self._recorder.event("control", text, step=step)
        self._say(f"fp8debug: {text}")

    def _note_in_manifest(
        self, control: Control, step: int, after: CapturePlan, stopped: Sequence[str], lost_tensors: Sequence[str]
    ) -> None:
        manifest, options = self._manifest, after.options
        manifest.options |= {name: getattr(options, name) for name in CHANGEABLE} | {"steps": options.steps}
        recorded = {*manifest.tensors, *options.tensors}
        manifest.tensors = [tensor for tensor in KNOWN_TENSORS if tensor in recorded]
        change = {"serial": control.serial, "step": step, "layers_stopped": stopped, "tensors_stopped": lost_tensors}
        manifest.segments[-1].setdefault("changes", []).append(change)

    def _seen_raw(self) -> int:
        try:
            return read_control(self._path).raw_now if self._seen is not None else 0
        except UsageError:
            return 0
