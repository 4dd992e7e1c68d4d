"""The framework's own delayed-scaling state, read at every pass without waiting for the device.

`scale` (one number a slot) and `amax_history` (window, slots) belong to each direction of a module. Slot 0 of the
window collects the amax of the micro-batch under way; a roll moves every slot one down, the newest to the end. Sources:
`_update_amax_history` of Transformer Engine's quantization.py, `delayed_scaling.cu`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, overload

import numpy as np
import torch

from fp8debug.formats import Format
from fp8debug.recipes import DelayedScaling
from fp8debug.recipes.base import quotient, scale_inv
from fp8debug.replay import Moment, ScaleInForce


class SlotState(NamedTuple):
    """One operand's state."""

    scale: np.float32
    collected: float
    """Amax taken in the micro-batch under way."""
    largest: float
    """Of the window, what is being collected apart."""
    newest: float
    n_rolled: int
    """Slots of the window that an amax has filled."""
    history_len: int


class StateCopy:
    """A direction's state on its way to the host: five numbers a slot, whatever the window."""

    def __init__(self, scale: torch.Tensor, history: torch.Tensor) -> None:
        self._history_len = len(history)
        history = history.detach().float()
        rolled = history[1:] if len(history) > 1 else torch.zeros_like(history)
        numbers = (scale.detach().reshape(-1).float(), history[0], rolled.amax(0), rolled[-1], rolled.count_nonzero(0))
        both = torch.stack([n.float() for n in numbers])
        self._host = both.to("cpu", non_blocking=True)
        self._event: torch.Event | None = None
        if both.device.type != "cpu":
            self._event = torch.Event(device=both.device)
            self._event.record()

    def slot(self, number: int) -> SlotState:
        """State of one slot; waits for the copy."""
        if self._event is not None:
            self._event.synchronize()
            self._event = None
        scale, collected, largest, newest, n_rolled = self._host[:, number].numpy()
        return SlotState(scale, float(collected), float(largest), float(newest), int(n_rolled), self._history_len)


def copy_state(meta: object, direction: str) -> StateCopy | None:
    """Start to copy the state of `scaling_fwd` or `scaling_bwd`; None where the recipe keeps none."""
    state = meta.get(direction) if isinstance(meta, dict) else None
    scale, history = getattr(state, "scale", None), getattr(state, "amax_history", None)
    if not isinstance(scale, torch.Tensor) or not isinstance(history, torch.Tensor) or history.dim() != 2:
        return None
    if history.shape[1] != scale.numel():
        return None
    return StateCopy(scale, history)


class OperandScales:
    """What is in force for one operand, pass after pass; remembers when the scale last changed."""

    def __init__(self, recipe: DelayedScaling, fmt: Format, slot: int) -> None:
        self.recipe = recipe
        self._fmt = fmt
        self._slot = slot
        self._maximum = math.ldexp(fmt.max, -recipe.margin)
        self._waiting: deque[FrameworkScales] = deque()
        self._scale: np.float32 | None = None
        self._step = 0
        self._set_at_step: int | None = None

    def at(self, copy: StateCopy, moment: Moment, ran: bool | None) -> FrameworkScales:
        """The scale of a pass at `moment`; read when somebody asks."""
        scales = FrameworkScales(self, copy, moment, ran)
        self._waiting.append(scales)
        return scales

    def resolve(self, wanted: FrameworkScales) -> None:
        """Read what waits, in the order of the passes, up to `wanted`."""
        while self._waiting:
            scales = self._waiting.popleft()
            scales.found = self._read(scales)
            if scales is wanted:
                return

    def state(self, copy: StateCopy) -> SlotState:
        """This operand's part of a copy."""
        return copy.slot(self._slot)

    def _read(self, scales: FrameworkScales) -> ScaleInForce:
        state = self.state(scales.copy)
        if self._scale is not None and state.scale != self._scale:
            self._set_at_step = self._step
        self._scale, self._step = state.scale, scales.moment.step
        is_set = bool(state.n_rolled) or state.scale != 1
        return ScaleInForce(
            self.recipe.text,
            self._fmt,
            False,
            state.scale,
            scale_inv(state.scale),
            self._amax_used(state) if is_set else None,
            state.history_len,
            state.history_len - 1 - state.n_rolled,
            state.n_rolled,
            self._set_at_step,
            "ok" if is_set else "warmup",
            scales.ran,
        )

    def _amax_used(self, state: SlotState) -> float | None:
        """The amax of the window that gives this scale, else, to one ulp, the one that follows from the scale.

        What decided may have left the window with the very roll that used it.
        """
        for amax in (state.largest, state.newest):
            if 0 < amax < math.inf and quotient(self._maximum, amax) == state.scale:
                return amax
        return float(quotient(self._maximum, float(state.scale))) if 0 < state.scale < math.inf else None


class FrameworkScales(Sequence[ScaleInForce]):
    """The one scale of an operand at one pass, as a sequence that is read only when looked into."""

    def __init__(self, operand: OperandScales, copy: StateCopy, moment: Moment, ran: bool | None) -> None:
        self._operand = operand
        self.copy = copy
        self.moment = moment
        self.ran = ran
        """Whether the module ran in the micro-batch before."""
        self.found: ScaleInForce | None = None

    def collected_amax(self) -> float:
        """Amax that the framework has taken of this operand in the micro-batch under way; waits for the copy."""
        return self._operand.state(self.copy).collected

    def __len__(self) -> int:
        return 1

    @overload
    def __getitem__(self, index: int) -> ScaleInForce: ...
    @overload
    def __getitem__(self, index: slice) -> list[ScaleInForce]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if self.found is None:
            self._operand.resolve(self)
        return [self.found][index]
