"""A module's passes: under which key its operands stand, and what of them has been seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from fp8debug.hooks.backends.placement import WeightPlacements
from fp8debug.hooks.backends.transformer_engine.gemms import TEGemm
from fp8debug.hooks.backends.transformer_engine.scaling_state import (
    FrameworkScales,
    OperandScales,
    StateCopy,
    copy_state,
)
from fp8debug.hooks.backends.transformer_engine.wording import delayed_recipe, format_asked
from fp8debug.replay import Moment


@dataclass(slots=True)
class Pass:
    """One forward of a module, and the backward that belongs to it."""

    moment: Moment
    sampled: bool
    ran: bool | None
    """Whether the module ran in the micro-batch before; None: not known."""
    debugged: bool = False
    """Whether Transformer Engine has been told to show its operands."""
    seen: set[tuple[str, str]] = field(default_factory=set)
    """Layers and tensors that have been reported."""
    states: dict[str, StateCopy | None] = field(default_factory=dict)
    """The FP8 state as it was in force, by direction."""

    def key(self, tensor: str) -> Moment:
        """Moment of a tensor of this pass."""
        return self.moment._replace(pass_="backward") if tensor in ("dy", "dx", "dw") else self.moment


class Watched:
    """A module that is watched, known by its address alone."""

    def __init__(self, module: nn.Module, kind: str, placements: WeightPlacements) -> None:
        self.kind = kind
        self.placements = placements
        """Of weights, in the model that the module was found in."""
        self.key = id(module)
        self.layers: dict[TEGemm, str] = {}
        """GEMMs that are recorded → our names of them."""
        self.forward: Pass | None = None
        """The forward that ran last, or is running."""
        self.backward: Pass | None = None
        """The pass whose backward ran last, or is running."""
        self._operands: dict[tuple[str, str], OperandScales] = {}
        self._microbatch: tuple[int, int] | None = None
        self._ran: bool | None = None

    def begin(self, moment: Moment, *, sampled: bool, before: tuple[int, int] | None) -> Pass:
        """A forward begins; `before` is the micro-batch before this one, if any was seen."""
        here = moment.step, moment.microbatch
        if moment.pass_ == "forward" and here != self._microbatch:
            self._ran = None if before is None else self._microbatch == before
            self._microbatch = here
        self.forward = Pass(moment, sampled, self._ran)
        return self.forward

    def scales(self, meta: Any, gemm: TEGemm, tensor: str, taken: Pass) -> FrameworkScales | None:
        """What the module's own state had in force for x, w or dy; None where it has none."""
        if tensor not in ("x", "w", "dy") or not isinstance(meta, Mapping):
            return None
        direction = "scaling_bwd" if tensor == "dy" else "scaling_fwd"
        if direction not in taken.states:
            taken.states[direction] = copy_state(meta, direction)
        state, recipe = taken.states[direction], delayed_recipe(meta.get("recipe"))
        if state is None or recipe is None:
            return None
        name = self.layers[gemm], tensor
        operand = self._operands.get(name)
        if operand is None or operand.recipe != recipe:
            fmt = format_asked(meta["recipe"], tensor)
            operand = self._operands[name] = OperandScales(recipe, fmt, gemm.slot(tensor))
        return operand.at(state, taken.key(tensor), taken.ran)
