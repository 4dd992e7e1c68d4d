"""One capture, from the first hook to the last flushed part."""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

import torch
from torch import nn

from fp8debug.errors import UsageError
from fp8debug.hooks.attachment import Attachment
from fp8debug.hooks.backends.base import FoundLayer
from fp8debug.hooks.clock import Clock, FinishedStep
from fp8debug.hooks.control import RunControl
from fp8debug.hooks.description import RunDescription
from fp8debug.hooks.emulate.emulation import Emulation
from fp8debug.hooks.errands import Errands
from fp8debug.hooks.flight import FlightRecorder
from fp8debug.hooks.flushing import Flushing
from fp8debug.hooks.forks import abandon_in_children
from fp8debug.hooks.limits import Limits
from fp8debug.hooks.live_scalars import OnScalars, ScalarFeed
from fp8debug.hooks.masks import RowMask
from fp8debug.hooks.measure.engine import Engine
from fp8debug.hooks.missing import note_missing, note_unmatched
from fp8debug.hooks.observation import Observation
from fp8debug.hooks.plan import CapturePlan
from fp8debug.hooks.recorder import Recorder
from fp8debug.hooks.resume import Resume, begin_segment
from fp8debug.hooks.roster import Roster
from fp8debug.hooks.say import error_text, nowhere
from fp8debug.hooks.scalars import as_scalar
from fp8debug.hooks.silence import SilenceCheck
from fp8debug.hooks.step_reports import StepReports
from fp8debug.hooks.training import TrainingWatch
from fp8debug.hooks.writer import PartWriter
from fp8debug.rundir import LayerInfo, Manifest, RunDir
from fp8debug.storage import RunPath

_NO_EXCLUSION = "a second writer could not be refused there, since the place knows no locks and no conditional writes"


@dataclass(slots=True)
class CloseSummary:
    """What a capture came to."""

    run_path: RunPath
    n_records: int
    n_steps: int
    is_complete: bool = True
    """Whether all of the records were written, as neither a budget nor a slow disk allows always."""
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
        on_scalars: OnScalars | None = None,
    ) -> None:
        self.run_dir = run_dir
        self.clock = Clock(self._on_step_end)
        self.watch = TrainingWatch(self.clock, self.fail, measure_gradients=measure_gradients)
        self.emulation = None if plan.emulation is None else Emulation(plan.emulation, say)
        self._manifest = manifest
        self._say = say
        self.rank = rank
        """Rank of this process when the session was made."""
        self._resume = resume
        segment = 0 if resume is None else resume.segment
        self._recorder = Recorder(engine, plan.recipes, plan.options.rolls, segment, rank, plan.options.detail)
        self._roster = Roster()
        self._flight = FlightRecorder(plan.options, self._recorder, say) if plan.options.trigger else None
        self._observation = Observation(
            plan, self._recorder, self._roster, self.clock, flush=self.flush, fail=self.fail, flight=self._flight
        )
        self._reports = StepReports(self._recorder, self._roster, self._flight, segment=segment, rank=rank)
        self._feed = None if on_scalars is None else self._fed(on_scalars, plan)
        self._attachment = Attachment(
            self._observation, self._roster, self._recorder, self.emulation, entered=self._on_layers, say=say
        )
        self._errands = Errands(run_dir.storage)
        self._description = RunDescription(
            run_dir, manifest, rank, resume, self._roster, self._recorder, lambda: self._control.state, self._errands
        )
        self._control = RunControl(
            run_dir, manifest, self._observation, self._recorder, self._roster,
            hook=self._attachment.attach_late, changed=self._description.write, say=nowhere if rank else say,
            errands=self._errands,
        )  # fmt: skip
        silence = SilenceCheck(self._roster, self._recorder, self.clock, say)
        self.watch.optimizer_listeners += [
            self._attachment.after_optimizer, self._control.after_optimizer, silence.after_optimizer
        ]  # fmt: skip
        limits = Limits(plan.options, manifest.world_size, self._recorder, say)
        self._writer = PartWriter(run_dir, rank, self._errands, limits.most_bytes)
        self._flushing = Flushing(self._writer, self._recorder, self._flight, limits.dropping)
        self._limits = limits.of(self._writer, self._observation)
        self._problems: list[str] = []
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
        if not self._writer.excludes:
            self._recorder.event("assumption", f"nobody else writes to {self.run_dir.path}: {_NO_EXCLUSION}", step=None)
        self._description.begin()
        if self._resume is not None:
            self.clock.first_step = partial(
                begin_segment, self._resume, self._manifest, self._roster, self._recorder,
                say=nowhere if self.rank else self._say, begun=self._description.write,
            )  # fmt: skip
        self.watch.start()
        self._observation.active = True
        atexit.register(self.close)
        self._errands.before_exit(self.close)
        abandon_in_children(self)

    def attach_layers(self, model: nn.Module, found: Sequence[FoundLayer]) -> list[FoundLayer]:
        """Hook the selected ones of layers of `model`; returns them all."""
        return self._attachment.attach(model, found)

    def forget_graphs(self) -> None:
        """Hooks have come to layers that may have been compiled before."""
        self._attachment.forget_graphs()

    def known_modules(self) -> set[nn.Module]:
        """GEMM layers known now, those included that have come since into a model that is attached."""
        return self._attachment.known_modules()

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
            if self._feed is not None:
                self._guarded(self._recorder.catch_up)
                self._guarded(partial(self._feed.deliver, wait=True))
            self._guarded(self._flushing.flush_at_close)
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
        self._problems += self._limits.problems
        self._manifest.closed_at = datetime.now().astimezone().isoformat(timespec="seconds")
        self._description.end()
        self._errands.close()
        self._summary = CloseSummary(
            self.run_dir.path, self._recorder.n_records, self._description.n_steps, self._limits.is_complete,
            self._problems,
        )  # fmt: skip
        return self._summary

    def abandon(self) -> None:
        """Fall silent without writing: this process is a forked copy of the one that records."""
        if self._summary is not None:
            return
        self._summary = CloseSummary(self.run_dir.path, 0, 0)
        self._stop_watching()
        atexit.unregister(self.close)
        self._writer.release()

    def fail(self, error: Exception) -> None:
        """Disable fp8debug because of an error of ours; the training goes on."""
        if self._manifest.status == "disabled":
            return
        self._observation.active = False
        text = error_text(error)
        self._manifest.status, self._manifest.status_reason = "disabled", text
        self._problems.append(f"disabled at step {self.clock.step}: {text}")
        self._say(f"fp8debug: disabled at step {self.clock.step}, the training goes on ({text})")
        self._recorder.event("disabled", text, step=self.clock.step)
        self._stop_watching()
        with contextlib.suppress(Exception):  # the disk may be what failed
            self._flushing.flush_last()
        self._description.write()

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
            self._guarded(lambda: self._begin_step(number))
        if self.emulation is not None and number != before:
            self.emulation.advance()

    def _begin_step(self, number: int) -> None:
        if number < self.clock.step:
            text = (
                f"step {number} begins after step {self.clock.step} was reached: what is recorded twice of a step is "
                "all kept and read together; to go on from a checkpoint, resume the run, which begins a new segment"
            )
            self._recorder.event("steps_went_back", text, step=number)
        self.clock.begin(number)

    def log(
        self,
        *,
        loss: float | torch.Tensor | None = None,
        grad_norm: float | torch.Tensor | None = None,
        lr: float | None = None,
        tokens: int | None = None,
        eval: Mapping[str, float | torch.Tensor] | None = None,
    ) -> None:
        """Give numbers of the step under way; they win over what was found by itself.

        Args:
            loss, grad_norm, lr, tokens: of the step.
            eval: benchmark scores by task, higher is better, such as {"gsm8k": 0.41}. They may be given after the
                last step too, until the session is closed; each call adds to those before.

        Raises:
            UsageError: `eval` is no such mapping.
        """
        scores = {} if eval is None else _scores(eval)
        if self.active:
            for task, score in scores.items():
                self._recorder.add_score(task, score, step=self.clock.step)
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
            self._guarded(self._flushing.flush)

    # -- inside -------------------------------------------------------------------------------------------------

    def _on_layers(self, model: nn.Module, found: Sequence[FoundLayer], taken: Sequence[str]) -> None:
        self._control.add(model, found, taken)
        self._description.write()

    def _on_step_end(self, finished: FinishedStep) -> None:
        self._description.n_steps += 1
        self._observation.end_step(finished.step)
        self._attachment.check()
        scheduled = self._observation.is_scheduled(finished.step)
        report = self.watch.take_report()
        if self._feed is not None:
            self._feed.end_step(finished.step, report, sampled=scheduled)
            self._recorder.end_step()
            self._recorder.make_arrived()
        self._reports.add(finished, report, scheduled=scheduled)
        if self._description.n_steps == 1:
            note_unmatched(self._observation, self._roster, self._recorder)
        if self._description.is_stale:  # some layers show only while the model runs
            self._description.write()
        self._control.look(finished.step)
        self._limits.look()
        if self._flushing.is_due or self._observation.is_full:
            self.flush()
        if self._feed is not None:
            self._feed.deliver()

    def _fed(self, on_scalars: OnScalars, plan: CapturePlan) -> ScalarFeed:
        def failed(text: str, step: int) -> None:
            text = f"on_scalars is called no more after step {step}: {text}"
            self._say(f"fp8debug: {text}")
            self._recorder.event("on_scalars_failed", text, step=step)

        passes = ("forward", "backward", *(("eval",) if plan.options.inference else ()))
        feed = ScalarFeed(on_scalars, plan.recipes, passes, failed)
        self._recorder.feed(feed)
        return feed

    def _note_what_is_missing(self) -> None:
        self._problems += note_missing(
            self._observation, self._roster, self._recorder,
            n_steps=self._description.n_steps, optimizer_stepped=self.watch.n_optimizer_steps > 0,
        )  # fmt: skip

    def _stop_watching(self) -> None:
        self._observation.active = False
        self._observation.drop()
        self._attachment.remove()
        self.watch.stop()

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # ours, never the training's
            self.fail(error)


def _scores(given: object) -> dict[str, float]:
    """Scores by task as plain numbers."""
    if not isinstance(given, Mapping) or not all(isinstance(task, str) for task in given):
        raise UsageError(f'session.log(eval={given!r}): expected scores by task, such as {{"gsm8k": 0.41}}')
    scores = {}
    for task, score in given.items():
        try:
            scores[task] = float(score)
        except (TypeError, ValueError) as error:
            raise UsageError(f"session.log(eval=...): the score of {task!r} is {score!r}; expected a number") from error
    return scores
