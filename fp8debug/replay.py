"""Replay of stateful recipes: the scale that delayed scaling has in force at each pass, online or from a record.

One state per (layer, tensor, recipe), shared by all calls. A history advances once per micro-batch (or step): here
when the first observation of a later micro-batch arrives, which is the same as after the forward for `x` and after
that micro-batch's backward for `dy`, since nothing of the tensor is observed in between. A recomputed pass reads the
scale of its forward, an evaluation pass the one that the next forward will have; both leave the history alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fp8debug.formats import Format
from fp8debug.recipes import DelayedScaling, DelayedState, Recipe, scale_inv

_ADVANCING = ("forward", "backward")
"""Passes that a history sees."""


class Moment(NamedTuple):
    """Where in a training an observation stands."""

    step: int
    microbatch: int
    call: int
    pass_: str
    """forward | recompute | backward | eval"""


class ScaleInForce(NamedTuple):
    """A scale at one pass, with what the history was at that moment; simulated, or a framework's own."""

    recipe: str
    fmt: Format
    alternate: bool
    scale: np.float32 | None
    """None when it cannot be known: an amax is missing from the history."""
    scale_inv: np.float32 | None
    amax_used: float | None
    history_len: int | None
    """None, as the following numbers: not known of a framework's scale."""
    history_zeros: int | None
    n_rolls: int | None
    set_at_step: int | None
    status: str
    ran: bool | None = None
    """Whether the module ran between the last two rolls; None when simulated, or not known."""


@dataclass(slots=True)
class _Track:
    recipe: DelayedScaling
    formats: tuple[tuple[Format, bool], ...]
    state: DelayedState
    rolled_at: tuple[int, int] | None = None
    incomplete: bool = False


class ScaleSimulator:
    """Delayed-scaling states of all observed tensors."""

    def __init__(self, recipes: Sequence[Recipe], rolls: str) -> None:
        self._recipes = [r for r in recipes if isinstance(r, DelayedScaling)]
        self._per_step = rolls == "step"
        self._tracks: dict[tuple[str, str], list[_Track]] = {}

    def observe(self, layer: str, tensor: str, moment: Moment, amax: float | None) -> list[ScaleInForce]:
        """Return the scales in force for this pass, then let the histories see `amax` (None: not measured)."""
        tracks = self._tracks_of(layer, tensor)
        if moment.pass_ == "eval":
            return self.peek(layer, tensor, moment)
        advances = moment.pass_ in _ADVANCING
        if advances:
            self._roll_if_due(tracks, moment)
        scales = [s for track in tracks for s in _scales_of(track)]
        if advances:
            _see(tracks, amax)
        return scales

    def peek(self, layer: str, tensor: str, moment: Moment) -> list[ScaleInForce]:
        """Return the scales that `observe` would return; no history notices."""
        tracks = self._tracks_of(layer, tensor)
        rolls = [moment.pass_ == "eval" or self._is_due(track, moment) for track in tracks]
        return [
            s for track, roll in zip(tracks, rolls, strict=True) for s in _scales_of(_rolled(track) if roll else track)
        ]

    def see(self, layer: str, tensor: str, moment: Moment, amax: float | None) -> None:
        """What `observe` does to the histories, at half its cost: for passes whose scales nobody asks for."""
        if moment.pass_ in _ADVANCING:
            tracks = self._tracks_of(layer, tensor)
            self._roll_if_due(tracks, moment)
            _see(tracks, amax)

    def break_histories(self, is_broken: Callable[[str, str], bool]) -> None:
        """Amaxes of these (layer, tensor) will be missing: their histories are incomplete from here on."""
        for operand, tracks in self._tracks.items():
            if is_broken(*operand):
                _see(tracks, None)

    def _tracks_of(self, layer: str, tensor: str) -> list[_Track]:
        tracks = self._tracks.get((layer, tensor))
        if tracks is None:
            tracks = self._tracks[layer, tensor] = [_new_track(recipe, tensor) for recipe in self._recipes]
        return tracks

    def _roll_if_due(self, tracks: Sequence[_Track], moment: Moment) -> None:
        for track in tracks:
            if self._is_due(track, moment) and track.rolled_at is not None:
                track.state.roll(track.rolled_at[0])
            track.rolled_at = self._period(moment)

    def _is_due(self, track: _Track, moment: Moment) -> bool:
        return moment.pass_ in _ADVANCING and track.rolled_at not in (None, self._period(moment))

    def _period(self, moment: Moment) -> tuple[int, int]:
        return (moment.step, 0 if self._per_step else moment.microbatch)


def _new_track(recipe: DelayedScaling, tensor: str) -> _Track:
    formats = recipe.formats_for(tensor)
    return _Track(recipe, formats, recipe.new_state([fmt for fmt, _ in formats]))


def _see(tracks: Sequence[_Track], amax: float | None) -> None:
    for track in tracks:
        if amax is None:
            track.incomplete = True
        else:
            track.state.observe(amax)


def _rolled(track: _Track) -> _Track:
    """A copy of `track` that has consumed what it has seen."""
    state = copy.deepcopy(track.state)
    if track.rolled_at is not None:
        state.roll(track.rolled_at[0])
    return replace(track, state=state)


def _scales_of(track: _Track) -> list[ScaleInForce]:
    state, known = track.state, not track.incomplete
    status = ("ok" if state.n_rolls else "warmup") if known else "history_incomplete"
    history = (state.amax_used, state.history_len, state.history_zeros, state.n_rolls, state.set_at_step, status)
    scales = []
    for fmt, alternate in track.formats:
        scale = state.scale(fmt) if known else None
        inverse = scale_inv(scale) if scale is not None else None
        scales.append(ScaleInForce(track.recipe.text, fmt, alternate, scale, inverse, *history))
    return scales
