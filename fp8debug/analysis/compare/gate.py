"""A limit that the user sets on the loss gap before looking at it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fp8debug.analysis.compare.gap import Gap
from fp8debug.errors import UsageError


@dataclass(frozen=True, slots=True)
class Gate:
    """The largest gap that is accepted; with both limits, both must hold."""

    absolute: float | None = None
    relative: float | None = None
    """A share of the baseline's loss: 0.0025 is 0.25 %."""

    @property
    def text(self) -> str:
        """As a person would write it."""
        parts = [f"{self.absolute:g}"] if self.absolute is not None else []
        return " and ".join([*parts, f"{100 * self.relative:g}%"] if self.relative is not None else parts)


@dataclass(frozen=True, slots=True)
class GateResult:
    """What became of a gate."""

    gate: str
    outcome: str
    """pass | fail | undecided: above the limit, but no further than the noise reaches"""
    reason: str


def parse_gate(texts: Sequence[str]) -> Gate | None:
    """`0.01` is absolute, `0.25%` relative; commas separate too. None without any.

    Raises:
        UsageError: no positive number, or two of a kind.
    """
    limits: dict[str, float] = {}
    for text in (part.strip() for whole in texts for part in whole.split(",")):
        kind, number = ("relative", text[:-1]) if text.endswith("%") else ("absolute", text)
        try:
            limit = float(number)
        except ValueError:
            limit = math.nan
        if not 0 < limit < math.inf:
            raise UsageError(f"--gate: got {text!r}; expected a gap such as 0.01, or a share of the loss such as 0.25%")
        if kind in limits:
            raise UsageError(f"--gate: two {kind} limits; expected one such as 0.01, one such as 0.25%, or both")
        limits[kind] = limit / 100 if kind == "relative" else limit
    return Gate(**limits) if limits else None


def judge(gate: Gate, gap: Gap, ends_badly: str | None = None) -> GateResult:
    """Hold the gap over the last steps against the gate.

    Args:
        gate: the limits.
        gap: what was measured.
        ends_badly: why the run cannot pass whatever its gap is, such as a loss that is NaN at the end.
    """
    if ends_badly is not None:
        return GateResult(gate.text, "fail", ends_badly)
    if gap.absolute is None:
        return GateResult(gate.text, "undecided", "no step has a finite loss in both curves")
    limit = _limit(gate, gap)
    reached = f"gap {gap.absolute:+.4g} over the last {gap.n_level} matched steps, limit {limit:.4g}"
    if gap.absolute <= limit:
        return GateResult(gate.text, "pass", reached)
    if gap.low is not None and gap.low > limit:
        return GateResult(gate.text, "fail", reached)
    why = "there are too few steps to tell it from noise" if gap.low is None else "the noise reaches as far"
    return GateResult(gate.text, "undecided", f"{reached}, but {why}")


def _limit(gate: Gate, gap: Gap) -> float:
    limits = [gate.absolute] if gate.absolute is not None else []
    if gate.relative is not None:
        limits.append(gate.relative * abs(gap.baseline_loss or 0.0))
    return min(limits)
