"""One capture, from the first hook to the last flushed part."""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import time
import traceback
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path

import torch
from torch import nn

from fp8debug.errors import some
from fp8debug.hooks.backends.base import FoundLayer
from fp8debug.hooks.backends.compiled import forget_graphs
from fp8debug.hooks.backends.finding import find_layers
from fp8debug.hooks.backends.reattach import Reattachment
from fp8debug.hooks.backends.router import BackendRouter
from fp8debug.hooks.clock import Clock, FinishedStep
from fp8debug.hooks.control import RunControl
from fp8debug.hooks.emulate.emulation import Emulation
from fp8debug.hooks.flight import FlightRecorder
from fp8debug.hooks.masks import RowMask
from fp8debug.hooks.measure.engine import Engine
from fp8debug.hooks.observation import Observation
from fp8debug.hooks.optimizer_states import OptimizerStates
from fp8debug.hooks.plan import CapturePlan
from fp8debug.hooks.recorder import EventCells, Recorder
from fp8debug.hooks.resume import Resume
from fp8debug.hooks.roster import Roster
from fp8debug.hooks.say import nowhere
from fp8debug.hooks.scalars import as_scalar
from fp8debug.hooks.serving import ServedSteps
from fp8debug.hooks.silence import SilenceCheck
from fp8debug.hooks.tables import Batch
from fp8debug.hooks.training import StepReport, TrainingWatch
from fp8debug.hooks.writer import PartWriter
from fp8debug.rundir import LayerInfo, Manifest, RankInfo, RunDir

MAX_NAMED = 8
"""Layers named one by one when the gradients of many are not finite."""


@dataclass(slots=True)
class CloseSummary:
    """What a capture came to."""

    run_path: Path
    n_records: int
    n_steps: int
    problems: list[str] = field(default_factory=list)


class Session:
    """An open capture: its life, and what a user can say to it.

    Whatever goes wrong in here disables fp8debug with one line and an event; the training goes on.
    """

    def __init__(
        self,
        plan: CapturePlan,
        run_dir: RunDir,
        manifest: Manifest,
        engine: Engine,
        say: Callable[[str], None],
        *,
        rank: int = 0,
        measure_gradients: bool = False,
        resume: Resume | None = None,
    ) -> None:
        self.run_dir = run_dir
        self.clock = Clock(self._on_step_end)
        self.watch = TrainingWatch(self.clock, self.fail, measure_gradients=measure_gradients)
        self.emulation = None if plan.emulation is None else Emulation(plan.emulation, say)
        self._manifest = manifest
        self._say = say
        self._rank = rank
        self._resume = resume
        self._segment = 0 if resume is None else resume.segment
        self._recorder = Recorder(engine, plan.recipes, plan.options.rolls, self._segment, rank, plan.options.detail)
        self._roster = Roster()
        self._flight = FlightRecorder(plan.options, self._recorder, say) if plan.options.trigger else None
        self._observation = Observation(
            plan, self._recorder, self._roster, self.clock, flush=self.flush, fail=self.fail, flight=self._flight
        )
        self._states = OptimizerStates(self._observation)
        self.watch.optimizer_listeners.append(self._states.observe)
        self._serving = ServedSteps(self.clock, self.fail) if plan.options.inference else None
        self._backends = BackendRouter()
        self._control = RunControl(
            run_dir, manifest, self._observation, self._recorder, self._roster,
            hook=self._hook_later, changed=self._write_manifest, say=nowhere if rank else say,
        )  # fmt: skip
        self.watch.optimizer_listeners.append(self._control.after_optimizer)
        silence = SilenceCheck(self._roster, self._recorder, self.clock, say)
        self.watch.optimizer_listeners.append(silence.after_optimizer)
        self._replacements = Reattachment(self._observation, plan.options.backend, self.attach_layers, say)
        self._writer = PartWriter(run_dir, rank)
        self._n_steps = 0
        self._n_layers_written = 0
        self._gradients_broke = False
        self._problems: list[str] = []
        self._opened_s = self._flushed_s = time.monotonic()
        self._summary: CloseSummary | None = None

    @property
    def active(self) -> bool:
        """False before it is open, once it is closed, and when fp8debug has disabled itself."""
        return self._observation.active

    # -- life ---------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Take the directory and begin to watch the training.

        Raises:
            Fp8DebugError: another process writes there.
        """
        self._writer.start()
        if self._rank == 0:
            self.run_dir.write_manifest(self._manifest)
        elif self._manifest.segments[-1].get("launch") is not None:  # rank 0 can tell it from another run's
            self.run_dir.create_manifest(self._manifest)
        if self._resume is not None:
            self.clock.first_step = self._begin_segment
        self.watch.start()
        self._observation.active = True
        atexit.register(self.close)
        _abandon_in_children(self)

    def attach_model(self, model: nn.Module, prefix: str = "") -> list[FoundLayer]:
        """Hook the selected layers of `model`; returns all GEMM layers found, selected or not."""
        return self.attach_layers(model, find_layers(model, prefix, self._observation.plan.options.backend))

    def attach_layers(self, model: nn.Module, found: Sequence[FoundLayer]) -> list[FoundLayer]:
        """Hook the selected ones of layers of `model`; returns them all."""
        taken = [layer for layer in found if self._observation.plan.selection.takes(layer.name)]
        if self.emulation is not None:
            for name, reason in self.emulation.add(taken).items():
                self._recorder.event("not_emulated", reason, step=None, layer=name)
        self._backends.attach(model, taken, self._observation)
        self._states.add(model, taken)
        if self._serving is not None:
            self._serving.watch(model)
        self._roster.add(found, {layer.name for layer in taken})
        self._control.add(model, found, [layer.name for layer in taken])
        self._replacements.watch(model, found)
        self._write_manifest()
        return list(found)

    @property
    def rank(self) -> int:
        """Rank of this process when the session was made."""
        return self._rank

    def _hook_later(self, model: nn.Module, layers: Sequence[FoundLayer]) -> None:
        """Record layers that were found before; the training stays as it is, emulated or not."""
        self._backends.attach(model, layers, self._observation)
        self._states.add(model, layers)
        self._roster.add(layers, {layer.name for layer in layers})
        self.forget_graphs()

    def forget_graphs(self) -> None:
        """Hooks have come to layers that may have been compiled before."""
        if forget_graphs():
            text = "what torch.compile has made so far is made again at its next call, so that layers in it are seen"
            self._recorder.event("reattached", text, step=self.clock.step)
            self._say(f"fp8debug: {text}")

    def known_modules(self) -> set[nn.Module]:
        """GEMM layers known now, those included that have come since into a model that is attached."""
        return self._replacements.known()

    @property
    def layers(self) -> list[LayerInfo]:
        """GEMM layers known so far, recorded or not."""
        return self._roster.layers

    @property
    def n_roots(self) -> int:
        """Models attached so far."""
        return len(self._roster.roots)

    def close(self, status: str = "closed", reason: str | None = None) -> CloseSummary:
        """End the capture: remove every hook, write what is left. Safe to call twice."""
        if self._summary is not None:
            return self._summary
        if self.active:
            self._guarded(self.clock.close)
        if self.active:
            self._guarded(self._note_what_is_missing)
            if self._flight is not None:
                self._guarded(partial(self._flight.close, failed=status == "failed"))
            self.flush()
        disabled = self._manifest.status == "disabled"
        self._stop_watching()
        if self.emulation is not None:
            self.emulation.remove()
        atexit.unregister(self.close)
        self._guarded(self._writer.close)
        if self._writer.error is not None and not disabled:
            self.fail(self._writer.error)
        elif not disabled:
            self._manifest.status, self._manifest.status_reason = status, reason
        self._manifest.closed_at = datetime.now().astimezone().isoformat(timespec="seconds")
        self._write_manifest()
        if self._rank:
            with contextlib.suppress(OSError):
                self.run_dir.create_manifest(self._manifest)  # should rank 0 never have come
        self._summary = CloseSummary(self.run_dir.path, self._recorder.n_records, self._n_steps, self._problems)
        return self._summary

    def abandon(self) -> None:
        """Fall silent without writing: this process is a forked copy of the one that records."""
        self._summary = CloseSummary(self.run_dir.path, 0, 0)
        self._stop_watching()
        atexit.unregister(self.close)
        self._writer.release()

    def fail(self, error: Exception) -> None:
        """Disable fp8debug because of an error of ours; the training goes on."""
        if self._manifest.status == "disabled":
            return
        self._observation.active = False
        where = traceback.extract_tb(error.__traceback__)
        place = f" at {Path(where[-1].filename).name}:{where[-1].lineno}" if where else ""
        text = f"{type(error).__name__}: {error}{place}"
        self._manifest.status, self._manifest.status_reason = "disabled", text
        self._problems.append(f"disabled at step {self.clock.step}: {text}")
        self._say(f"fp8debug: disabled at step {self.clock.step}, the training goes on ({text})")
        self._recorder.event("disabled", text, step=self.clock.step)
        self._stop_watching()
        with contextlib.suppress(Exception):  # the disk may be what failed
            if self._flight is not None:
                self._flight.close(failed=False)
            self._write_last(self._take_batch())
        self._write_manifest()

    def _write_last(self, batch: Batch) -> None:
        if self._writer.error is None:
            self._writer.submit(batch)
        else:  # its thread has ended; what it could not write is lost, but why may still be told
            events = Batch()
            events.rows["events"] = batch.rows["events"]
            self._writer.write(events)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is None or (isinstance(error, SystemExit) and not error.code):
            self.close()
        else:
            status = "interrupted" if issubclass(kind, KeyboardInterrupt) else "failed"
            self.close(status, f"{kind.__name__}: {error}")

    # -- for the user -------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Say that the step is over. After the first call only this ends steps."""
        if self.active:
            self._guarded(self.clock.advance)
        if self.emulation is not None:
            self.emulation.advance()

    def begin_step(self, number: int) -> None:
        """Say that the step `number` begins, as a trainer counts; after the first call only this ends steps."""
        before = self.clock.step
        if self.active:
            self._guarded(lambda: self.clock.begin(number))
        if self.emulation is not None and number != before:
            self.emulation.advance()

    def log(
        self,
        *,
        loss: float | torch.Tensor | None = None,
        grad_norm: float | torch.Tensor | None = None,
        lr: float | None = None,
        tokens: int | None = None,
    ) -> None:
        """Give numbers of the step under way; they win over what was found by itself."""
        if self.active:
            given = {"loss": loss, "grad_norm": grad_norm, "lr": lr, "tokens": tokens}
            self.watch.report.logged |= {k: as_scalar(v) for k, v in given.items() if v is not None}

    def mask(self, mask: torch.Tensor | RowMask | None) -> None:
        """Say which rows are tokens; sampled x, dy, y and dx then have records of valid and of padding rows besides.

        Args:
            mask: bool, true for valid tokens, of any shape whose elements are the rows of x, such as (B, T): for the
                micro-batch whose forward follows. Or a callable (layer, tensor, rows) that returns such a tensor or
                None: until another is given. None: no row is padding.

        Raises:
            UsageError: anything else.
        """
        self._recorder.masks.give(mask)

    def flush(self) -> None:
        """Hand what was collected to the writer now."""
        if self.active:
            self._guarded(self._flush)

    def _flush(self) -> None:
        if self._writer.error is not None:
            raise self._writer.error
        self._flushed_s = time.monotonic()
        self._writer.submit(self._take_batch())

    def _take_batch(self) -> Batch:
        return self._recorder.take_batch() if self._flight is None else self._flight.take_out()

    # -- inside -------------------------------------------------------------------------------------------------

    def _begin_segment(self, told: int | None) -> int:
        """Find the first step of a resumed run; said, and kept as events."""
        resume, world = self._resume, self._manifest.world_size
        assert resume is not None
        modules = [m for layer in self._roster.layers if (m := self._roster.module(layer.name)) is not None]
        first = resume.first_step(modules, told)
        text = f"segment {resume.segment} begins at step {first.step}: {first.source}"
        self._recorder.event("resumed", text, step=first.step)
        if first.is_assumption:
            self._recorder.event("assumption", f"{text}; --resume-step says it for sure", step=first.step)
        if world != resume.world_before:
            ranks = f"{resume.world_before} ranks before, {world} now"
            self._recorder.event("resumed", f"segment {resume.segment}: {ranks}", step=first.step)
            text += f"; {ranks}"
        if self._rank == 0:
            self._say(f"fp8debug: {text}")
        self._manifest.segments[-1]["first_step"] = first.step
        self._write_manifest()
        return first.step

    def _all_roots_and_layers(self) -> tuple[list[str], list[LayerInfo]]:
        """Of all models of this segment, then those that only earlier segments had."""
        roots, layers = list(self._roster.roots), list(self._roster.layers)
        if self._resume is not None:
            known = {layer.name for layer in layers}
            layers += [layer for layer in self._resume.layers_before if layer.name not in known]
            roots += [root for root in self._resume.roots_before if root not in roots]
        return roots, layers

    def _on_step_end(self, finished: FinishedStep) -> None:
        self._n_steps += 1
        self._observation.end_step(finished.step)
        self._replacements.check()
        report = self.watch.take_report()
        scheduled = self._observation.is_scheduled(finished.step)
        row = partial(report.row, finished, segment=self._segment, rank=self._rank)
        if self._flight is None:
            self._recorder.add_step(partial(row, sampled=scheduled))
        else:
            self._flight.end_step(finished, row, report, scheduled=scheduled)
        if self._n_steps == 1:
            self._note_unmatched()
        if len(self._roster.layers) != self._n_layers_written:  # some show only while the model runs
            self._write_manifest()
        self._control.look(finished.step)
        if report.gradients and not finished.skipped:
            self._recorder.add_late_events(partial(self._broken_gradients, report, finished.step))
        now = time.monotonic()
        is_due = now - self._flushed_s > flush_interval_s(now - self._opened_s)
        if is_due or self._observation.is_full:
            self.flush()

    def _note_unmatched(self) -> None:
        """Exclusions without an effect: once, when the models of the first step are known."""
        layers = [(layer.name, layer.raw_name) for layer in self._roster.layers]
        for text in self._observation.plan.unmatched_exclusions(layers):
            self._recorder.event("unmatched_exclude", text, step=None)

    def _broken_gradients(self, report: StepReport, step: int) -> list[EventCells]:
        """Events about weight gradients that are not finite; called on the writer's thread, until there are any."""
        broken = [] if self._gradients_broke else report.nonfinite_gradients()
        if not broken:
            return []
        self._gradients_broke = True
        layer_of = self._roster.layer_of_weight()
        names = [layer_of[parameter] for parameter in broken if parameter in layer_of]
        text = f"step {step}, wgrad: the weight gradient has NaN or Inf"
        if len(names) > MAX_NAMED:
            text += f", like those of {len(names) - 1} other layers"
        if not names:
            text = f"step {step}: NaN or Inf in {len(broken)} gradients, none of them of a recorded layer's weight"
            return [(step, "nonfinite", None, None, text)]
        return [(step, "nonfinite", name, "dw", text) for name in names[:MAX_NAMED]]

    def _note_what_is_missing(self) -> None:
        if not self._n_steps:
            self._note_unmatched()
        skipped, fired = self._observation.skipped, self._recorder.fired
        self._problems += [f"{some(list(names))}: {reason}" for reason, names in skipped.items()]
        if self.watch.n_optimizer_steps and not self._n_steps and fired and not skipped:
            text = "the optimizer stepped, but every forward was in evaluation mode: call model.train() to record steps"
            self._recorder.event("evaluation_only", text, step=None)
            self._problems.append(text)
        masks, differs = self._recorder.masks, self._recorder.noticed.precision_differs()
        if masks.n_given and not masks.n_used:
            self._problems.append("session.mask was given masks, but none had as many elements as a tensor had rows")
        for layer, message in differs.items():
            self._recorder.event("precision_differs", message, step=None, layer=layer)
        self._problems += [f"{layer}: {message}" for layer, message in list(differs.items())[:3]]
        if len(differs) > 3:
            self._problems.append(f"{len(differs) - 3} more layers were asked to run in FP8 and did not")
        for layer, message in self._roster.absent(fired):
            self._recorder.event("never_fired", message, step=None, layer=layer)
        line = self._roster.absence_line(fired)
        if line is not None:
            self._problems.append(line)
            if self.watch.n_optimizer_steps and not fired:
                text = "they ran inside a graph that was made without us, or in evaluation mode only"
                self._problems.append(f"the optimizer stepped, so {text}")

    def _stop_watching(self) -> None:
        self._observation.active = False
        self._observation.drop()
        self._backends.detach()
        self._replacements.stop()
        if self._serving is not None:
            self._serving.stop()
        self.watch.stop()

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # ours, never the training's
            self.fail(error)

    def _write_manifest(self) -> None:
        """Say what the run is, on rank 0, and what this rank is, on every one."""
        manifest = self._manifest
        self._n_layers_written = len(self._roster.layers)
        with contextlib.suppress(OSError):  # the parts tell the story without it
            if self._rank == 0:
                manifest.roots, manifest.layers = self._all_roots_and_layers()
                self.run_dir.write_manifest(manifest)
            self.run_dir.write_rank(self._rank_info())

    def _rank_info(self) -> RankInfo:
        manifest, roster = self._manifest, self._roster
        return RankInfo(
            rank=self._rank,
            world_size=manifest.world_size,
            host=socket.gethostname(),
            pid=os.getpid(),
            segment=self._segment,
            roots=roster.roots,
            layers=roster.layers,
            n_steps=self._n_steps,
            n_records=self._recorder.n_records,
            status=manifest.status,
            status_reason=manifest.status_reason,
            control=self._control.state,
        )


def flush_interval_s(elapsed_s: float) -> float:
    """Seconds between flushes: a twentieth of the run so far, so a kill costs at most 5 % and files stay few."""
    return min(max(elapsed_s / 20, 1.0), 300.0)


def _abandon_in_children(session: Session) -> None:
    reference = weakref.ref(session)

    def abandon() -> None:
        live = reference()
        if live is not None and live._summary is None:
            live.abandon()

    os.register_at_fork(after_in_child=abandon)
