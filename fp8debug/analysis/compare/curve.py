"""What a training reported of itself, step by step, wherever it was recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fp8debug.errors import UsageError
from fp8debug.storage import RunPath

Floats = npt.NDArray[np.float64]
Steps = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Numbers of a training by step, in the order of steps; a number that is not known is NaN where the loss is.

    A loss that was NaN or infinite stays what it was: that is the finding.
    """

    name: str
    steps: Steps
    """int64, rising, each step once."""
    loss: Floats
    """float64, one a step."""
    grad_norm: Floats | None = None
    """None: not recorded."""
    grad_norm_given: npt.NDArray[np.bool_] | None = None
    """Where a norm was reported, be it NaN; None: everywhere."""
    lr: Floats | None = None
    tokens: Floats | None = None
    """Tokens of each step, not their running sum."""
    kind: str = "curve"
    """run | csv | json | jsonl | curve: made by a program"""
    taken: Mapping[str, str] = field(default_factory=dict)
    """Which column of the file each of these numbers was taken from."""
    facts: Mapping[str, str] | None = None
    """What is known of the set-up, by name; None: nothing."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """The last benchmark score of each task."""
    run_path: RunPath | None = None
    """Run directory that has tensors to look at; None: there is only this curve."""
    notes: Sequence[str] = ()
    """What was odd about the file."""

    @property
    def n_nonfinite(self) -> int:
        """Steps whose loss is NaN or infinite."""
        return int((~np.isfinite(self.loss)).sum())

    def __len__(self) -> int:
        return int(self.steps.size)


def make_curve(
    name: str,
    steps: Sequence[int] | Steps,
    loss: Sequence[float] | Floats,
    *,
    grad_norm: Sequence[float] | Floats | None = None,
    lr: Sequence[float] | Floats | None = None,
    tokens: Sequence[float] | Floats | None = None,
    facts: Mapping[str, str] | None = None,
) -> Curve:
    """A curve from plain sequences of one length; of a step that comes twice, the last counts.

    Raises:
        UsageError: nothing in it, or sequences of different lengths.
    """
    order = last_of_each(np.asarray(steps, dtype=np.int64))
    size = len(steps)
    if not size:
        raise UsageError(f"{name} has no step; expected at least one with a loss")

    def column(values: Sequence[float] | Floats | None, word: str) -> Floats | None:
        if values is None:
            return None
        if len(values) != size:
            raise UsageError(f"{name}: {len(values)} values of {word} for {size} steps; expected one a step")
        return np.asarray(values, dtype=np.float64)[order]

    losses = column(loss, "loss")
    assert losses is not None
    return Curve(
        name,
        np.asarray(steps, dtype=np.int64)[order],
        losses,
        column(grad_norm, "grad_norm"),
        lr=column(lr, "lr"),
        tokens=column(tokens, "tokens"),
        facts=facts,
    )


def last_of_each(steps: Steps) -> npt.NDArray[np.intp]:
    """Places of the last entry of each step, by rising step: what a resumed training wrote again replaces the first."""
    _, from_the_end = np.unique(steps[::-1], return_index=True)
    return steps.size - 1 - from_the_end


def matched(first: Curve, second: Curve) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Places, in each of two curves, of the steps that both have."""
    _, places, others = np.intersect1d(first.steps, second.steps, assume_unique=True, return_indices=True)
    return places, others
