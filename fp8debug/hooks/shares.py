"""Whether backward is called on a micro-batch's share of the step's loss: trainers divide, plain loops often do not."""

from __future__ import annotations

import sys
from types import FrameType

_TRAINERS = ("accelerate", "lightning", "pytorch_lightning")
"""Packages whose backward divides the loss by the number of micro-batches, or is given it divided, by their users."""
_DEPTH = 12


def called_by_trainer() -> bool:
    """Whether one of the nearest callers belongs to a trainer that adds the losses of micro-batches up."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_DEPTH):
        if frame is None:
            return False
        if frame.f_globals.get("__name__", "").partition(".")[0] in _TRAINERS:
            return True
        frame = frame.f_back
    return False
