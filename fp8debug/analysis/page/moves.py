"""Which operands left their own band around a spike: the first movers first."""

from __future__ import annotations

from fp8debug.analysis.compare.sentences import departure_text
from fp8debug.analysis.compare.triage import HISTORY, Departure, departures_before
from fp8debug.analysis.page.records import Moved, Steps
from fp8debug.analysis.run import Run

LOOKBACK = 5
"""Recorded steps before a spike in which an operand is taken for its forerunner."""
MOST = 5
_METRICS = {"db_lost": "sqnr_db"}


def moved_before(run: Run, step: int, recorded: Steps) -> tuple[Moved, ...]:
    """The first operands that moved, at most a handful.

    Args:
        run: an open run.
        step: the first step of a spike.
        recorded: steps with records of tensors, rising.
    """
    before = recorded[recorded <= step]
    if not before.size:
        return ()
    first = int(before[max(0, before.size - 1 - LOOKBACK)])
    first_known = int(before[max(0, before.size - 1 - LOOKBACK - HISTORY)])
    _, found = departures_before(run, step, first, first_known)
    # What is beyond the limits at every step did not move.
    return tuple(_moved(one) for one in found if one.measure != "unhealthy")[:MOST]


def _moved(one: Departure) -> Moved:
    return Moved(
        layer=one.layer,
        tensor=one.tensor,
        metric=_METRICS.get(one.measure, one.measure),
        step=one.step,
        before=one.usual,
        value=one.value,
        sentence=f"{departure_text(one)}.",
    )
