"""Bytes that stay while the scale they are read with changes: a cast that was kept and should have been made anew."""

from __future__ import annotations

from typing import NamedTuple

from fp8debug.hooks.payloads import PayloadFacts, error_sums
from fp8debug.metrics import gain
from fp8debug.replay import Moment


class _Held(NamedTuple):
    checksum: int
    scale_inv: float
    moment: Moment


class PayloadWatch:
    """The last sampled payload of each operand."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], _Held] = {}
        self._told: set[tuple[str, str]] = set()

    def look(self, operand: tuple[str, str], moment: Moment, checksum: int, facts: PayloadFacts) -> str | None:
        """What is wrong with this payload, in words, once an operand; None when nothing is.

        Equal bytes under another scale are right where the tensor itself became a power of two larger. So where it is
        at hand, its gain decides.
        """
        if facts.scale_inv is None:
            return None
        held = _Held(checksum, float(facts.scale_inv), moment)
        before, self._last[operand] = self._last.get(operand), held
        if before is None or operand in self._told or before.checksum != held.checksum:
            return None
        if before.scale_inv == held.scale_inv or _is_right(facts):
            return None
        self._told.add(operand)
        return (
            f"bytes unchanged but scale changed: scale_inv was {before.scale_inv:.6g} at step {before.moment.step}, "
            f"micro-batch {before.moment.microbatch}, and is {held.scale_inv:.6g} at step {moment.step}, micro-batch "
            f"{moment.microbatch}, for the same codes"
        )


def _is_right(facts: PayloadFacts) -> bool:
    factor = None if facts.lost is None else gain(error_sums(facts.lost))
    return factor is not None and abs(factor - 1) <= 2 * facts.fmt.max_gain_error
