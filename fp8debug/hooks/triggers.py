"""What makes the flight recorder write: rules on a finished step, and the running medians that they compare with.

nan: a NaN or Inf in any tensor, the loss or the gradient norm, in a step after one that had none anywhere (weights
that are NaN stay so: that is one trigger, not one a step).
spike: the loss or the gradient norm is more than 8 robust standard deviations (1.4826 times the median absolute
deviation, Rousseeuw and Croux 1993) above the median of the steps before, and at least a tenth (loss) or the whole
median (gradient norm, whose tails are heavier) above it.
amax>16x: the largest magnitude of a tensor in the step is more than 16 times its median over the steps before.
Medians are of the last 64 finite values; nothing is judged before there are 16 of them.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from fp8debug.schema import TABLES

WINDOW = 64
WARM_UP = 16
SPIKE_DEVIATIONS = 8.0
_DEVIATION_OF_MAD = 1.4826
_LEAST_RISE = {"loss": 0.1, "gradient norm": 1.0}

_PLACE = {name: place for place, name in enumerate(TABLES["tensors"].column_names)}
_NONFINITE = [_PLACE[name] for name in ("n_nan", "n_posinf", "n_neginf")]
_LAYER, _TENSOR, _PASS, _AMAX, _CLASS = (_PLACE[name] for name in ("layer", "tensor", "pass", "amax", "row_class"))


class Fired(NamedTuple):
    """One thing that happened in one step."""

    trigger: str
    """As it was asked for: nan, spike, amax>16x."""
    step: int
    layer: str | None
    tensor: str | None
    message: str

    @property
    def is_of_amax(self) -> bool:
        """Whether a tensor alone fired it: such may go on and off for long, and are written more rarely."""
        return self.trigger.startswith("amax>")


class RunningMedian:
    """Median of the last `WINDOW` values."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, value: float) -> None:
        """Take in a finite value; the oldest one leaves."""
        if len(self._recent) == WINDOW:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
        self._recent.append(value)
        insort(self._sorted, value)

    def median(self) -> float | None:
        """None during the warm-up."""
        return _median(self._sorted) if len(self._sorted) >= WARM_UP else None

    def deviation(self) -> float:
        """Robust standard deviation of the same values."""
        middle = _median(self._sorted)
        return _DEVIATION_OF_MAD * _median(sorted(abs(value - middle) for value in self._sorted))


class Triggers:
    """Judges finished steps in their order."""

    def __init__(self, words: Sequence[str], passes: Collection[str]) -> None:
        self._nan = "nan" in words
        self._spike = "spike" in words
        factors = [(float(word[5:-1]), word) for word in words if word.startswith("amax>")]
        self._amax = min(factors, default=None)
        self._passes = passes
        self._amaxes: dict[tuple[str, str], RunningMedian] = {}
        self._numbers = {name: RunningMedian() for name in _LEAST_RISE}
        self._last_nonfinite: int | None = None
        """Last step in which anything was not finite."""

    def judge_tensors(self, step: int, rows: Iterable[tuple[Any, ...]]) -> list[Fired]:
        """What fires among the records of one step, given as rows of the table `tensors` in order of observation."""
        rows = [row for row in rows if row[_PASS] in self._passes and row[_CLASS] == "all"]
        return [*self._judge_nonfinite(step, rows), *self._judge_amaxes(step, rows)]

    def judge_numbers(self, step: int, loss: float | None, grad_norm: float | None) -> list[Fired]:
        """What fires of the loss and the gradient norm of one step."""
        fired = []
        for name, value in (("loss", loss), ("gradient norm", grad_norm)):
            if value is None:
                continue
            if not math.isfinite(value):
                if self._begins_now(step) and self._nan:
                    fired.append(Fired("nan", step, None, None, f"the {name} is {value}"))
            else:
                fired += self._judge_spike(step, name, value)
        return fired

    def _judge_nonfinite(self, step: int, rows: Sequence[tuple[Any, ...]]) -> list[Fired]:
        bad = [(row, n) for row in rows if (n := sum(row[place] or 0 for place in _NONFINITE))]
        if not bad or not self._begins_now(step) or not self._nan:
            return []
        row, n = bad[0]  # in order of observation: where it came from
        more = f", and {len(bad) - 1} records after it have some too" if len(bad) > 1 else ""
        return [Fired("nan", step, row[_LAYER], row[_TENSOR], f"{n:,} values are NaN or Inf{more}")]

    def _judge_amaxes(self, step: int, rows: Sequence[tuple[Any, ...]]) -> list[Fired]:
        if self._amax is None:
            return []
        factor, word = self._amax
        largest: dict[tuple[str, str], float] = {}
        for row in rows:
            if row[_AMAX] is not None:
                operand = (row[_LAYER], row[_TENSOR])
                largest[operand] = max(largest.get(operand, 0.0), row[_AMAX])
        jumps: list[tuple[float, str, str, float, float]] = []
        for operand, amax in largest.items():
            running = self._amaxes.get(operand)
            if running is None:
                running = self._amaxes[operand] = RunningMedian()
            median = running.median()
            if median and amax > factor * median:
                jumps.append((amax / median, *operand, amax, median))
            running.add(amax)
        if not jumps:
            return []
        ratio, layer, tensor, amax, median = max(jumps)
        more = f"; so did {len(jumps) - 1} others, less far" if len(jumps) > 1 else ""
        message = f"amax jumped to {amax:.4g}, {ratio:.1f} times its median {median:.4g}{more}"
        return [Fired(word, step, layer, tensor, message)]

    def _judge_spike(self, step: int, name: str, value: float) -> list[Fired]:
        running = self._numbers[name]
        median = running.median() if self._spike else None
        fired = []
        if median is not None:
            rise = max(SPIKE_DEVIATIONS * running.deviation(), _LEAST_RISE[name] * abs(median))
            if value > median + rise:
                message = f"the {name} is {value:.6g}, its median {median:.6g}"
                fired.append(Fired("spike", step, None, None, message))
        running.add(value)
        return fired

    def _begins_now(self, step: int) -> bool:
        """Whether something that is not finite in `step` comes after a step that had nothing of the kind."""
        last = self._last_nonfinite
        self._last_nonfinite = step if last is None else max(last, step)
        return last is None or step > last + 1


def _median(ordered: Sequence[float]) -> float:
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
