"""What a capture was asked for and did not see: kept as events, and said when it ends."""

from __future__ import annotations

from collections.abc import Iterator

from fp8debug.errors import some
from fp8debug.hooks.observation import Observation
from fp8debug.hooks.recorder import Recorder
from fp8debug.hooks.roster import Roster

_MAX_NAMED = 3
_HIDDEN = "the FP8 operands stay inside a graph of torch.compile: x, w and dy are recorded before the cast, no payload"


def note_unmatched(observation: Observation, roster: Roster, recorder: Recorder) -> None:
    """Keep exclusions without an effect: once, when the models of the first step are known."""
    layers = [(layer.name, layer.raw_name) for layer in roster.layers]
    for text in observation.plan.unmatched_exclusions(layers):
        recorder.event("unmatched_exclude", text, step=None)
    for layer in observation.plan.unmatched_departures([layer.name for layer in roster.layers if layer.matched]):
        recorder.event("unmatched_plan", f"the plan is about a layer that is not here: {layer}", step=None)


def note_missing(
    observation: Observation,
    roster: Roster,
    recorder: Recorder,
    *,
    n_steps: int,
    optimizer_stepped: bool,
) -> list[str]:
    """Keep what is missing once the run is over; returns one line about each kind of it, for the user."""
    if not n_steps:
        note_unmatched(observation, roster, recorder)
    skipped, fired = observation.skipped, recorder.fired
    lines = [f"{some(list(names))}: {reason}" for reason, names in skipped.items()]
    if optimizer_stepped and not n_steps and fired and not skipped:
        text = "the optimizer stepped, but every forward was in evaluation mode: call model.train() to record steps"
        recorder.event("evaluation_only", text, step=None)
        lines.append(text)
    n_unended = observation.clock.n_unended
    if n_steps == 1 and n_unended > 1 and not optimizer_stepped:
        text = (
            f"no optimizer stepped, so {n_unended} micro-batches count as one step: call session.step() after each step"
        )
        recorder.event("assumption", text, step=None)
        lines.append(text)
    if recorder.masks.n_given and not recorder.masks.n_used:
        lines.append("session.mask was given masks, but none had as many elements as a tensor had rows")
    lines += _precision(recorder)
    lines += _never_fired(roster, recorder, optimizer_stepped=optimizer_stepped)
    return lines


def _precision(recorder: Recorder) -> Iterator[str]:
    hidden = recorder.noticed.hidden_in_graphs()
    for layer in hidden:
        recorder.event("not_captured", _HIDDEN, step=None, layer=layer)
    if hidden:
        yield f"{some(hidden)}: {_HIDDEN}"
    differs = recorder.noticed.precision_differs()
    for number, (layer, message) in enumerate(differs.items()):
        recorder.event("precision_differs", message, step=None, layer=layer)
        if number < _MAX_NAMED:
            yield f"{layer}: {message}"
    if len(differs) > _MAX_NAMED:
        yield f"{len(differs) - _MAX_NAMED} more layers were asked to run in FP8 and did not"


def _never_fired(roster: Roster, recorder: Recorder, *, optimizer_stepped: bool) -> Iterator[str]:
    fired = recorder.fired
    for layer, message in roster.absent(fired):
        recorder.event("never_fired", message, step=None, layer=layer)
    line = roster.absence_line(fired)
    if line is not None:
        yield line
        if optimizer_stepped and not fired:
            text = "they ran inside a graph that was made without us, or in evaluation mode only"
            yield f"the optimizer stepped, so {text}"
