"""One capture, from the first hook to the last flushed part."""

from __future__ import annotations

import atexit
import contextlib
import os
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
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from fp8debug.errors import some
from fp8debug.hooks.backends.base import Backend, FoundLayer
from fp8debug.hooks.clock import Clock, FinishedStep
from fp8debug.hooks.emulate.emulation import Emulation, emulated_text
from fp8debug.hooks.emulate.linear import emulated_forward
from fp8debug.hooks.measure.engine import Engine
from fp8debug.hooks.plan import CapturePlan
from fp8debug.hooks.probe.gemms import GemmProbe
from fp8debug.hooks.recorder import Observed, Recorder
from fp8debug.hooks.say import count_layers
from fp8debug.hooks.scalars import as_scalar
from fp8debug.hooks.tables import Batch
from fp8debug.hooks.training import TrainingWatch
from fp8debug.hooks.writer import PartWriter
from fp8debug.replay import Moment, ScaleInForce
from fp8debug.rundir import LayerInfo, Manifest, RunDir

MAX_BUFFERED_BYTES = 32 << 20
_OUT_PROJ = NonDynamicallyQuantizableLinear.__name__
_READ_ONLY = "nn.MultiheadAttention reads its weight without calling it"


@dataclass(slots=True)
class CloseSummary:
    """What a capture came to."""

    run_path: Path
    n_records: int
    n_steps: int
    problems: list[str] = field(default_factory=list)


class Session:
    """An open capture. Implements the observer that backends report to.

    Whatever goes wrong in here disables fp8debug with one line and an event; the training goes on.
    """

    def __init__(
        self,
        plan: CapturePlan,
        run_dir: RunDir,
        manifest: Manifest,
        engine: Engine,
        backend: Backend,
        say: Callable[[str], None],
        *,
        rank: int = 0,
        measure_gradients: bool = False,
    ) -> None:
        self.tensors = frozenset(plan.options.tensors)
        self.active = False
        self.run_dir = run_dir
        self.clock = Clock(self._on_step_end)
        self.watch = TrainingWatch(self.clock, self.fail, measure_gradients=measure_gradients)
        self.emulation = None if plan.emulation is None else Emulation(plan.emulation, say)
        self._plan = plan
        self._manifest = manifest
        self._backend = backend
        self._say = say
        self._rank = rank
        self._recorder = Recorder(engine, plan.recipes, plan.options.rolls, 0, rank, plan.options.detail)
        self._probe = self._gemm_probe()
        self._writer = PartWriter(run_dir, rank)
        self._modules: dict[str, weakref.ref[nn.Module]] = {}
        self._weights_seen: set[tuple[str, int]] = set()
        self._skipped: dict[str, dict[str, None]] = {}
        self._n_steps = 0
        self._problems: list[str] = []
        self._opened_s = self._flushed_s = time.monotonic()
        self._summary: CloseSummary | None = None

    # -- life ---------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Take the directory and begin to watch the training.

        Raises:
            Fp8DebugError: another process writes there.
        """
        self._writer.start()
        if self._rank == 0:
            self.run_dir.write_manifest(self._manifest)
        self.watch.start()
        self.active = True
        atexit.register(self.close)
        _abandon_in_children(self)

    def attach_model(self, model: nn.Module, prefix: str = "") -> list[FoundLayer]:
        """Hook the selected layers of `model`; returns all GEMM layers found, selected or not."""
        return self.attach_layers(self._backend.find(model, prefix))

    def attach_layers(self, found: Sequence[FoundLayer]) -> list[FoundLayer]:
        """Hook the selected ones of the layers of one model; returns them all."""
        taken = [layer for layer in found if self._plan.selection.takes(layer.name)]
        if self.emulation is not None:
            for name, reason in self.emulation.add(taken).items():
                self._recorder.event("not_emulated", reason, step=None, layer=name)
        self._modules |= {layer.name: weakref.ref(layer.module) for layer in taken}
        self._backend.attach(taken, self)
        names = {layer.name for layer in taken}
        self._manifest.roots += sorted({layer.root for layer in found})
        self._manifest.layers += [
            LayerInfo(
                name=layer.name,
                raw_name=layer.raw_name,
                class_name=type(layer.module).__name__,
                root=layer.root,
                in_features=layer.in_features,
                out_features=layer.out_features,
                matched=layer.name in names,
                emulated=emulated_text(layer.module),
            )
            for layer in found
        ]
        self._write_manifest()
        return list(found)

    @property
    def n_roots(self) -> int:
        """Models attached so far."""
        return len(self._manifest.roots)

    def close(self, status: str = "closed", reason: str | None = None) -> CloseSummary:
        """End the capture: remove every hook, write what is left. Safe to call twice."""
        if self._summary is not None:
            return self._summary
        if self.active:
            self._guarded(self.clock.close)
        if self.active:
            self._guarded(self._note_what_is_missing)
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
        self.active = False
        where = traceback.extract_tb(error.__traceback__)
        place = f" at {Path(where[-1].filename).name}:{where[-1].lineno}" if where else ""
        text = f"{type(error).__name__}: {error}{place}"
        self._manifest.status, self._manifest.status_reason = "disabled", text
        self._problems.append(f"disabled at step {self.clock.step}: {text}")
        self._say(f"fp8debug: disabled at step {self.clock.step}, the training goes on ({text})")
        self._recorder.event("disabled", text, step=self.clock.step)
        self._stop_watching()
        with contextlib.suppress(Exception):  # the disk may be what failed
            self._write_last(self._recorder.take_batch())
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

    def flush(self) -> None:
        """Hand what was collected to the writer now."""
        if self.active:
            self._guarded(self._flush)

    def _flush(self) -> None:
        if self._writer.error is not None:
            raise self._writer.error
        self._flushed_s = time.monotonic()
        self._writer.submit(self._recorder.take_batch())

    # -- for backends -------------------------------------------------------------------------------------------

    def observe(self, layer: str, tensor: str, value: torch.Tensor, gemm_dtype: torch.dtype, moment: Moment) -> None:
        """Measure one operand. Of evaluation passes only the first of a sampled step is taken."""
        schedule = self._plan.schedule
        sampled, raw = schedule.sampled(moment.step), schedule.raw(moment.step)
        if moment.pass_ == "eval" and (moment.call or not sampled):
            return
        seen = Observed(layer, tensor, value, gemm_dtype, moment, self._emulated_scales(layer, tensor))
        facts = self._recorder.record(seen, sampled=sampled, raw=raw)
        if facts is not None and self._probe is not None:
            self._probe.observe(seen, facts)
        if (sampled or raw) and self._recorder.n_bytes > MAX_BUFFERED_BYTES:
            self.flush()

    def wants_weight(self, layer: str, moment: Moment) -> bool:
        """Weights change once a step: they are taken in the first training forward of it."""
        if moment.pass_ != "forward" or (layer, moment.step) in self._weights_seen:
            return False
        self._weights_seen.add((layer, moment.step))
        return True

    def skip(self, layer: str, reason: str) -> None:
        """Note, once a layer, that it cannot be captured."""
        self._recorder.fired.add(layer)
        self._skipped.setdefault(reason, {})[layer] = None
        self._recorder.note_unsupported(layer, None, reason, self.clock.step)

    # -- inside -------------------------------------------------------------------------------------------------

    def _emulated_scales(self, layer: str, tensor: str) -> Sequence[ScaleInForce]:
        """What an emulated layer really casts with, ours or one that the script emulates by itself."""
        module = self._modules[layer]()
        forward = None if module is None else emulated_forward(module)
        if forward is None or forward.last_call is None or tensor not in ("x", "w", "dy"):
            return ()
        return forward.last_call.scales_in_force(tensor)

    def _gemm_probe(self) -> GemmProbe | None:
        options, recorder = self._plan.options, self._recorder
        if "gemms" not in options.detail or not {"x", "w"} <= self.tensors:
            return None
        return GemmProbe(
            self._plan.recipes,
            options.accumulation,
            options.probe_memory,
            partial(recorder.add_cells, "gemms"),
            lambda message, step: recorder.event("probe_memory", message, step=step),
        )

    def _on_step_end(self, finished: FinishedStep) -> None:
        self._n_steps += 1
        self._weights_seen.clear()
        if self._probe is not None:
            self._probe.end_step(finished.step)
        report = self.watch.take_report()
        sampled = self._plan.schedule.sampled(finished.step)
        row = partial(report.row, finished, segment=0, rank=self._rank, sampled=sampled)
        self._recorder.add_step(row)
        now = time.monotonic()
        is_due = now - self._flushed_s > flush_interval_s(now - self._opened_s)
        if is_due or self._recorder.n_bytes > MAX_BUFFERED_BYTES:
            self.flush()

    def _note_what_is_missing(self) -> None:
        self._problems += [f"{some(list(names))}: {reason}" for reason, names in self._skipped.items()]
        if self.watch.n_optimizer_steps and not self._n_steps and self._recorder.fired and not self._skipped:
            text = "the optimizer stepped, but every forward was in evaluation mode: call model.train() to record steps"
            self._recorder.event("evaluation_only", text, step=None)
            self._problems.append(text)
        silent = [layer for layer in self._manifest.layers if layer.matched and layer.name not in self._recorder.fired]
        for layer in silent:
            why = _READ_ONLY if layer.class_name == _OUT_PROJ else "its forward hook never ran"
            self._recorder.event("never_fired", f"matched, but {why}", step=None, layer=layer.name)
        if silent:
            why = f" ({_READ_ONLY})" if all(layer.class_name == _OUT_PROJ for layer in silent) else ""
            names = some([layer.name for layer in silent])
            self._problems.append(f"{count_layers(len(silent), 'matched')} never ran: {names}{why}")
            if self.watch.n_optimizer_steps and not self._recorder.fired:
                text = "they ran inside torch.compile, where they are not seen yet, or in evaluation mode only"
                self._problems.append(f"the optimizer stepped, so {text}")

    def _stop_watching(self) -> None:
        self.active = False
        if self._probe is not None:
            self._probe.drop()
        self._backend.detach()
        self.watch.stop()

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # ours, never the training's
            self.fail(error)

    def _write_manifest(self) -> None:
        if self._rank == 0:
            with contextlib.suppress(OSError):  # the parts tell the story without it
                self.run_dir.write_manifest(self._manifest)


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
