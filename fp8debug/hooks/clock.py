"""Time in a training run: which step, micro-batch and pass an observation belongs to.

A micro-batch is what one backward covers. A step ends at the first training forward after at least one optimizer
step, or after a GradScaler step that skipped. Several optimizer steps with no forward between (Muon + AdamW,
optimizers that step inside backward) are one step; the closures of an LBFGS step are its micro-batches.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch

from fp8debug.replay import Moment


@dataclass(slots=True)
class FinishedStep:
    """What the clock knows of a step that has ended."""

    step: int
    n_microbatches: int
    skipped: bool
    started_unix_s: float
    duration_s: float


def in_backward() -> bool:
    """Whether autograd is running on this thread: a forward seen now is a recomputation."""
    return torch._C._current_graph_task_id() != -1


class Clock:
    """Turns forwards, backwards and optimizer steps into `Moment`s; calls `on_step_end` when a step is over."""

    def __init__(self, on_step_end: Callable[[FinishedStep], None]) -> None:
        self.step = 0
        self.first_step: Callable[[int | None], int] | None = None
        """Asked once, when the first step begins, what its number is; it is given what a trainer says, or None."""
        self.microbatch = 0
        self.serves = False
        """Whether a step is a forward of the model, in whatever mode."""
        self.n_unended = 0
        """Micro-batches at the end of the run that neither an optimizer step nor a call made a step of."""
        self._on_step_end = on_step_end
        self._manual = False
        self._stepped = False
        self._skipped = False
        self._forward_seen = False
        self._backward_seen = False
        self._calls: Counter[tuple[Hashable, str]] = Counter()
        self._started_unix_s = time.time()
        self._started_mono_s = time.monotonic()

    @property
    def upcoming(self) -> int:
        """The step that a training forward starting now belongs to."""
        self._settle()
        return self.step + 1 if self._stepped and not self._manual else self.step

    def forward(self, layer_id: Hashable, training: bool) -> Moment:
        """A layer's forward is being observed; opens the next step or micro-batch when one is due."""
        self._settle()
        if in_backward():
            pass_ = "recompute"
        elif not training or torch.is_inference_mode_enabled():
            pass_ = "eval"
        else:
            pass_ = "forward"
            self._open_if_due()
        call = self._calls[layer_id, pass_]
        self._calls[layer_id, pass_] = call + 1
        return Moment(self.step, self.microbatch, call, pass_)

    def backward(self) -> None:
        """A gradient has flowed through a layer."""
        self._backward_seen = True

    def weight_gradient(self) -> Moment:
        """The gradient of a weight has been computed: it belongs to the micro-batch, not to one call of the layer."""
        self._backward_seen = True
        return Moment(self.step, self.microbatch, 0, "backward")

    def optimizer_stepped(self, *, skipped: bool = False) -> None:
        """An optimizer step has completed, or a GradScaler skipped it."""
        if self._forward_seen:
            self._stepped = True
            self._skipped = self._skipped or skipped

    def missed(self) -> None:
        """An optimizer step has completed after forwards that nobody saw: it counts as a step."""
        self._forward_seen = self._stepped = True

    def advance(self) -> None:
        """The user says that the step is over; from now on only the user does."""
        self._manual = True
        self._settle()
        self._end_step()

    def begin(self, step: int) -> None:
        """A trainer says that `step` begins now, which ends another one; from now on only the trainer ends steps."""
        self._manual = True
        self._settle(step)
        if step != self.step:
            if self._forward_seen:
                self._end_step()
            self.step = step

    def forward_returned(self) -> None:
        """A forward of a model that serves is over, and with it the step."""
        if self._calls and not self._manual and not in_backward():
            self._end_step()

    def close(self) -> None:
        """The run is over: end the step that is open, if anything was seen in it."""
        if self._forward_seen or (self.serves and self._calls):
            self.n_unended = 0 if self._stepped or self._manual or self.serves else self.microbatch + 1
            self._end_step()

    def _settle(self, told: int | None = None) -> None:
        if self.first_step is not None:
            ask, self.first_step = self.first_step, None
            self.step = ask(told)

    def _open_if_due(self) -> None:
        if self._stepped and not self._manual:
            self._end_step()
        elif self._backward_seen and self._forward_seen:  # not one of something else, before the training began
            self.microbatch += 1
            self._calls.clear()
        self._backward_seen = False
        self._forward_seen = True

    def _end_step(self) -> None:
        now = time.monotonic()
        finished = FinishedStep(
            self.step, self.microbatch + 1, self._skipped, self._started_unix_s, now - self._started_mono_s
        )
        self._on_step_end(finished)
        self.step += 1
        self.microbatch = 0
        self._stepped = self._skipped = self._forward_seen = self._backward_seen = False
        self._calls.clear()
        self._started_unix_s = time.time()
        self._started_mono_s = now
