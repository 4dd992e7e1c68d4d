"""Where recording paused because somebody changed their mind: a history that is replayed lacks those amaxes."""

from __future__ import annotations

from typing import NamedTuple

from fp8debug.rundir import Manifest


class _Stop(NamedTuple):
    segment: int
    step: int
    layers: frozenset[str]
    tensors: frozenset[str]


class RecordingGaps:
    """The pauses of a run, as the manifest tells them; false when there is none."""

    def __init__(self, manifest: Manifest) -> None:
        self._stops = [
            _Stop(
                segment.get("segment", 0),
                change["step"],
                frozenset(change["layers_stopped"]),
                frozenset(change["tensors_stopped"]),
            )
            for segment in manifest.segments
            for change in segment.get("changes", ())
            if change["layers_stopped"] or change["tensors_stopped"]
        ]
        self._passed: set[tuple[int, int, str, str, int]] = set()

    def __bool__(self) -> bool:
        return bool(self._stops)

    def ended_by(self, segment: int, rank: int, step: int, layer: str, tensor: str) -> bool:
        """Whether this record is the first of its operand after a pause; asked of records in their order."""
        ended = False
        for number, stop in enumerate(self._stops):
            if stop.segment != segment or step <= stop.step + 1 or not (layer in stop.layers or tensor in stop.tensors):
                continue
            key = (segment, rank, layer, tensor, number)
            ended = ended or key not in self._passed
            self._passed.add(key)
        return ended
