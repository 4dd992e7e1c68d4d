"""What the training itself reports: loss, gradient norm, learning rate, optimizer steps and skipped ones.

Nothing of the script is changed; a few entry points of torch are wrapped while we watch and put back afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from fp8debug.hooks.clock import Clock, FinishedStep, in_backward
from fp8debug.hooks.scalars import DeviceScalar, Numbers, Scalar, as_numbers, as_scalar
from fp8debug.hooks.shares import called_by_trainer
from fp8debug.hooks.stepping import OptimizerWatch
from fp8debug.hooks.transforms import has_data


@dataclass(slots=True)
class StepReport:
    """What was reported during one step; numbers may still be on their way to the host."""

    losses: list[tuple[Scalar, Scalar]] = field(default_factory=list)
    """(loss as given to backward, live loss scale) of each micro-batch."""
    clip_norms: dict[int, Scalar] = field(default_factory=dict)
    """Return of clip_grad_norm_, by the first parameter clipped: several optimizers clip apart."""
    gradient_norms: list[Scalar] = field(default_factory=list)
    """Norm of each optimizer's gradients before its step, where nothing was clipped."""
    gradients: list[tuple[list[int], Numbers]] = field(default_factory=list)
    """ids of parameters, and the sum of squares of the gradient of each: where one is not finite, or every time."""
    losses_are_shares: bool = False
    """Whether each is a micro-batch's share of the step's loss, as trainers make it: they are added then."""
    lr: float | None = None
    logged: dict[str, Scalar | None] = field(default_factory=dict)
    """What session.log gave; it wins."""

    @property
    def is_here(self) -> bool:
        """Whether every number has come to the host."""
        numbers: list[Scalar | None] = [n for pair in self.losses for n in pair]
        numbers += [*self.clip_norms.values(), *self.gradient_norms, *self.logged.values()]
        return all(n.is_here for n in numbers if isinstance(n, DeviceScalar))

    def unscaled_losses(self) -> list[float]:
        """Losses with the loss scale divided out."""
        return [float(loss) / float(scale) for loss, scale in self.losses]

    def loss(self) -> tuple[float | None, str | None]:
        """The step's loss, the mean over its micro-batches unless they are shares of it, and where it came from."""
        if (given := self.logged.get("loss")) is not None:
            return float(given), "log"
        losses = self.unscaled_losses()
        if not losses:
            return None, None
        return sum(losses) / (1 if self.losses_are_shares else len(losses)), "backward"

    def grad_norm(self) -> tuple[float | None, str | None]:
        """Gradient norm before clipping, and where it came from."""
        if (given := self.logged.get("grad_norm")) is not None:
            return float(given), "log"
        if self.clip_norms:
            return math.hypot(*map(float, self.clip_norms.values())), "clip_grad_norm_"
        if self.gradient_norms:
            return math.hypot(*map(float, self.gradient_norms)), "gradients"
        return None, None

    def nonfinite_gradients(self) -> list[int]:
        """ids of the parameters whose gradients have a NaN or Inf, as far as they were looked at."""
        return [
            parameter
            for parameters, squares in self.gradients
            for parameter, square in zip(parameters, squares.tolist(), strict=True)
            if not math.isfinite(square)
        ]

    def row(self, finished: FinishedStep, *, segment: int, rank: int, sampled: bool) -> tuple[Any, ...]:
        """The step's row of the table `steps`, in the schema's column order; waits for numbers under way."""
        loss, loss_source = self.loss()
        grad_norm, grad_norm_source = self.grad_norm()
        lr, tokens = self.logged.get("lr"), self.logged.get("tokens")
        return (
            segment,
            finished.step,
            rank,
            loss,
            self.unscaled_losses(),
            loss_source,
            grad_norm,
            grad_norm_source,
            self.lr if lr is None else float(lr),
            None if tokens is None else int(float(tokens)),
            finished.skipped,
            finished.n_microbatches,
            sampled,
            finished.started_unix_s,
            finished.duration_s,
        )


class TrainingWatch(OptimizerWatch):
    """Wraps torch's entry points while a session is open; feeds the clock and a `StepReport`."""

    def __init__(self, clock: Clock, fail: Callable[[Exception], None], *, measure_gradients: bool) -> None:
        super().__init__(clock, fail)
        self._measure_gradients = measure_gradients
        self._loss_scale: Scalar = 1.0
        self.report = StepReport()
        self.optimizer_listeners: list[Callable[[torch.optim.Optimizer], None]] = []
        """Called after each optimizer step."""

    def start(self) -> None:
        """Begin to watch."""
        super().start()
        self._handles.append(register_optimizer_step_pre_hook(self._before_optimizer))
        self._wrap(torch.autograd, "backward", self._around_backward)
        self._wrap(torch.amp.GradScaler, "scale", self._around_scale)
        clip = torch.nn.utils.clip_grad_norm_
        self._wrap(torch.nn.utils, "clip_grad_norm_", self._around_clip)
        if torch.nn.utils.clip_grad.clip_grad_norm_ is clip:
            self._wrap(torch.nn.utils.clip_grad, "clip_grad_norm_", self._around_clip)
        # Called inside by newer versions: reached too by a script that had imported clip_grad_norm_ before we came.
        for owner, name in (
            (torch.nn.utils.clip_grad, "_clip_grads_with_norm_"),
            (torch.nn.utils, "clip_grads_with_norm_"),
        ):
            if hasattr(owner, name):
                self._wrap(owner, name, self._around_clip_with_norm)

    def take_report(self) -> StepReport:
        """Hand over the finished step's report and begin a new one."""
        report, self.report = self.report, StepReport(losses_are_shares=self.report.losses_are_shares)
        return report

    def _around_backward(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        tensors = args[0] if args else kwargs.get("tensors")
        if not in_backward():  # reentrant checkpointing calls backward for its own ends
            self._ours(self._note_loss, tensors)
        result = original(*args, **kwargs)
        self._ours(self._clock.backward)
        return result

    def _note_loss(self, tensors: Any) -> None:
        if isinstance(tensors, (list, tuple)) and len(tensors) == 1:
            tensors = tensors[0]
        if isinstance(tensors, torch.Tensor) and tensors.numel() == 1 and has_data(tensors):
            self.report.losses.append((as_scalar(tensors), self._loss_scale))
            self.report.losses_are_shares = self.report.losses_are_shares or called_by_trainer()
        self._loss_scale = 1.0

    def _around_scale(self, original: Callable[..., Any], scaler: Any, *args: Any, **kwargs: Any) -> Any:
        scaled = original(scaler, *args, **kwargs)
        self._ours(self._note_loss_scale, scaler)
        return scaled

    def _note_loss_scale(self, scaler: Any) -> None:
        if scaler.is_enabled() and scaler._scale is not None:
            self._loss_scale = as_scalar(scaler._scale)

    def _around_clip(self, original: Callable[..., Any], parameters: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(parameters, torch.Tensor):
            parameters = list(parameters)  # a generator can be read once only
        norm = original(parameters, *args, **kwargs)
        self._ours(self._note_clip, parameters, norm)
        return norm

    def _around_clip_with_norm(
        self,
        original: Callable[..., Any],
        parameters: Any,
        max_norm: float,
        total_norm: torch.Tensor,
        *rest: Any,
        **kwargs: Any,
    ) -> Any:
        if not isinstance(parameters, torch.Tensor):
            parameters = list(parameters)
        self._ours(self._note_clip, parameters, total_norm)
        self._ours(self._look_for_nonfinite, parameters, total_norm)
        return original(parameters, max_norm, total_norm, *rest, **kwargs)

    def _note_clip(self, parameters: Any, norm: torch.Tensor) -> None:
        first = parameters if isinstance(parameters, torch.Tensor) else next(iter(parameters), None)
        if not isinstance(norm, torch.Tensor) or has_data(norm):
            self.report.clip_norms[id(first)] = as_scalar(_local(norm))

    def _look_for_nonfinite(self, parameters: Any, norm: torch.Tensor) -> None:
        """Only when the norm is known to be broken, and before clipping makes every gradient NaN."""
        local = _local(norm)
        if local.device.type != "cpu" or not has_data(local) or torch.isfinite(local):
            return
        held = [parameters] if isinstance(parameters, torch.Tensor) else parameters
        self._note_squares([p for p in held if p.grad is not None])

    def _note_squares(self, parameters: Sequence[torch.Tensor]) -> torch.Tensor | None:
        gradients = [p.grad for p in parameters if p.grad is not None]
        if not gradients or not all(map(has_data, gradients)):
            return None
        squares = gradient_squares(gradients)
        self.report.gradients.append(([id(p) for p in parameters], as_numbers(squares)))
        return squares

    def _before_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        has_closure = any(callable(a) for a in (*args, *kwargs.values()))
        if not has_closure:
            with self._inside_hook():
                self._ours(self._note_gradients, optimizer)

    def _after_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        super()._after_optimizer(optimizer, args, kwargs)
        with self._inside_hook():
            self._ours(self._note_optimizer, optimizer)

    def _note_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        if not self._measure_gradients or self.report.clip_norms:
            return
        held = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        squares = self._note_squares(held)
        if squares is not None:
            self.report.gradient_norms.append(as_scalar(squares.sum().sqrt()))

    def _note_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        if self.report.lr is None:
            lr = optimizer.param_groups[0].get("lr")
            if isinstance(lr, (int, float)) or (isinstance(lr, torch.Tensor) and lr.device.type == "cpu"):
                self.report.lr = float(lr)
        for listener in self.optimizer_listeners:
            listener(optimizer)


def gradient_squares(gradients: Iterable[torch.Tensor]) -> torch.Tensor:
    """Sum of squares of each gradient, float64, of this rank's shards: not finite where the gradient is not.

    One dot product a tensor: `norm()` of a large FP32 tensor on CPU is off by 1e-3, a dot product by 1e-8.
    """
    squares = []
    for gradient in gradients:
        flat = _local(gradient.coalesce().values() if gradient.is_sparse else gradient).reshape(-1)
        if flat.is_complex():
            flat = torch.view_as_real(flat.resolve_conj()).reshape(-1)
        if flat.dtype in (torch.bfloat16, torch.float16):
            flat = flat.float()
        squares.append(torch.dot(flat, flat).double())
    # Where parameters live on several devices: not on the host, which would have to wait for the others.
    device = max((square.device for square in squares), key=lambda found: found.type != "cpu")
    return torch.stack([square.to(device, non_blocking=True) for square in squares])


def _local(tensor: torch.Tensor) -> torch.Tensor:
    to_local = getattr(tensor, "to_local", None)
    return to_local() if callable(to_local) else tensor
