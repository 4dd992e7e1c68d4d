"""Figures of each step for somebody's callback: called in the training's thread, when the numbers have arrived.

Nothing is waited for before the end of the training: a step whose numbers are still on their way is told at a later
step's end. Figures are taken where rows are made, so that they are those of the record.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from fp8debug import metrics
from fp8debug.hooks.measurement import Measurement, scaling_amax
from fp8debug.hooks.say import error_text
from fp8debug.hooks.scales import InForce
from fp8debug.hooks.training import StepReport
from fp8debug.metrics import ErrorSums
from fp8debug.recipes import CurrentScaling, DelayedScaling, Recipe, TensorRecipe
from fp8debug.replay import ScaleInForce

OnScalars = Callable[[int, Mapping[str, float]], object]
"""Takes a step and its figures by name."""

LEAST_NONZERO = 256
"""A tensor with fewer non-zeros proves nothing, here as in reports."""
_IDEAL = CurrentScaling()


class Figures:
    """What was seen between two ends of steps."""

    def __init__(self) -> None:
        self.n_nonfinite = 0
        self.by_operand: dict[tuple[str, str, str], float] = {}
        """Worst value by name of the figure, layer and tensor."""

    def put(self, name: str, layer: str, tensor: str, value: float | None) -> None:
        """Note a value; the worst one of an operand stays."""
        if value is None or not math.isfinite(value):
            return
        key = name, layer, tensor
        self.by_operand[key] = _worst(name)((self.by_operand.get(key, value), value))

    def scalars(self, *, sampled: bool) -> dict[str, float]:
        """The figures by name; those that sampled steps alone have are left out of others."""
        found = {"n_nonfinite": float(self.n_nonfinite)}
        by_name: dict[str, list[float]] = {}
        for (name, layer, tensor), value in self.by_operand.items():
            if sampled:
                found[f"{name}/{layer}/{tensor}"] = value
            if sampled or name == "scale_gap_bits":
                by_name.setdefault(name, []).append(value)
        return found | {f"worst_{name}": _worst(name)(values) for name, values in by_name.items()}


class ScalarFeed:
    """Collects figures as rows are made, and calls `call` with those of a step that is whole.

    Args:
        call: somebody's function; when it raises it is called no more.
        recipes: those of the run. Errors are those under the first with one scale a tensor.
        passes: names of the passes that count.
        failed: told why `call` is called no more, and at which step.
    """

    def __init__(
        self,
        call: OnScalars,
        recipes: Sequence[Recipe],
        passes: Sequence[str],
        failed: Callable[[str, int], None],
    ) -> None:
        self._call: OnScalars | None = call
        per_tensor = [recipe.text for recipe in recipes if isinstance(recipe, (TensorRecipe, DelayedScaling))]
        self._recipe = per_tensor[0] if per_tensor else None
        self._passes = frozenset(passes)
        self._failed = failed
        self._open = Figures()
        self._whole: deque[Figures] = deque()
        self._reports: deque[tuple[int, StepReport, bool]] = deque()
        self._is_calling = False
        self._lock = threading.Lock()

    # -- on the thread that makes rows --------------------------------------------------------------------------

    def saw(self, taken: Measurement, observed: Iterable[tuple[ScaleInForce, str]]) -> None:
        """A tensor in high precision, with the scales that have a memory."""
        health = taken.health
        bad = (health.n_nan or 0) + (health.n_posinf or 0) + (health.n_neginf or 0)
        self._open.n_nonfinite += bad
        amax = scaling_amax(health) or 0.0
        if taken.moment.pass_ not in self._passes or not 0 < amax < math.inf:
            return
        if health.n - (health.n_zero or 0) - bad < LEAST_NONZERO:
            return
        for scale, _ in observed:
            if scale.status == "ok" and not scale.alternate and scale.scale:
                gap = math.log2(float(scale.scale) / float(_IDEAL.scale(amax, scale.fmt)))
                self._open.put("scale_gap_bits", taken.layer, taken.tensor, gap)

    def lost(self, taken: Measurement, sums: Iterable[tuple[InForce, ErrorSums]]) -> None:
        """What a sampled tensor loses under each scale in force."""
        if taken.moment.pass_ not in self._passes:
            return
        for scale, of_scale in sums:
            if scale.recipe.text == self._recipe and not scale.alternate and of_scale.n_nonzero >= LEAST_NONZERO:
                self._open.put("underflow", taken.layer, taken.tensor, metrics.underflow(of_scale))
                self._open.put("sqnr_db", taken.layer, taken.tensor, metrics.sqnr_db(of_scale))

    def step_is_whole(self) -> None:
        """All rows of a step are made."""
        whole, self._open = self._open, Figures()
        with self._lock:
            self._whole.append(whole)

    # -- on the training's thread -------------------------------------------------------------------------------

    def end_step(self, step: int, report: StepReport, *, sampled: bool) -> None:
        """A step is over; its numbers may still be on their way."""
        self._reports.append((step, report, sampled))

    def deliver(self, *, wait: bool = False) -> None:
        """Call with each step that is there, in order.

        Args:
            wait: for numbers of the training that are on their way.
        """
        while self._call is not None and not self._is_calling and self._reports:
            step, report, sampled = self._reports[0]
            if not (wait or report.is_here):
                return
            with self._lock:
                if not self._whole:
                    return
                figures = self._whole.popleft()
            self._reports.popleft()
            self._tell(step, _reported(report) | figures.scalars(sampled=sampled))

    def _tell(self, step: int, scalars: dict[str, float]) -> None:
        assert self._call is not None
        self._is_calling = True
        try:
            self._call(step, scalars)
        except Exception as error:
            self._call = None
            self._failed(error_text(error), step)
        finally:
            self._is_calling = False


def _reported(report: StepReport) -> dict[str, float]:
    lr = report.logged.get("lr")
    known = {
        "loss": report.loss()[0],
        "grad_norm": report.grad_norm()[0],
        "lr": report.lr if lr is None else float(lr),
    }
    return {name: value for name, value in known.items() if value is not None}


def _worst(name: str) -> Callable[[Iterable[float]], float]:
    return min if name == "sqnr_db" else max
