"""Scales that are right but are used wrongly: inverted, twice, left out, or their bytes read as other numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from fp8debug.analysis.checkpoint.grids import grid_of, scale_numbers
from fp8debug.analysis.checkpoint.numbers import numbers
from fp8debug.analysis.checkpoint.records import Scale
from fp8debug.analysis.checkpoint.reference.hypotheses.evidence import Evidence
from fp8debug.analysis.checkpoint.reference.hypotheses.trial import Reading, Trial, try_reading
from fp8debug.errors import escape
from fp8debug.formats import Float32Array

_NUMBER_BYTES = {"F32": 4, "BF16": 2, "F16": 2, "F64": 8}
_SCALE_FORMATS = ("E8M0", "E4M3", "E5M2", "E4M3FNUZ", "U8")
_SCALE_WORDS = {"U8": "integers", "E8M0": "exponents (E8M0)"}


def used_wrongly(evidence: Evidence) -> Iterator[Trial]:
    """Each scale in turn, applied in other ways; then all of them together."""
    if evidence.quantised is None:
        return
    for scale in evidence.quantised.scales:
        for name, message, change in _uses(scale):
            yield from _tried(evidence, name, message, {scale.name: _changed(change, evidence.grids[scale.name])})
    if len(evidence.quantised.scales) > 1:
        inverted = {name: _changed(_invert, grid) for name, grid in evidence.grids.items()}
        words = "all scales of the codes hold reciprocals: where codes are multiplied they have to be divided"
        yield from _tried(evidence, "inverted", words, inverted)
        dropped = {
            scale.name: _changed(np.ones_like, evidence.grids[scale.name]) for scale in evidence.quantised.scales
        }
        yield from _tried(evidence, "unscaled", "the codes are the values: no scale belongs to them", dropped)


def bytes_as_other_numbers(evidence: Evidence) -> Iterator[Trial]:
    """The bytes of each scale as numbers of another kind."""
    if evidence.quantised is None:
        return
    for scale in evidence.quantised.scales:
        for name, message, stored in _other_numbers(evidence, scale):
            yield from _tried(evidence, name, message, {scale.name: grid_of(evidence.quantised, scale, stored)})


def _invert(grid: Float32Array) -> Float32Array:
    return np.float32(1) / grid


def _uses(scale: Scale) -> Iterator[tuple[str, str, Callable[[Float32Array], Float32Array]]]:
    name = escape(scale.name)
    is_done, should_be = ("divided by", "multiplied with") if scale.divides else ("multiplied with", "divided by")
    yield "inverted", f"codes are {is_done} {name}, but have to be {should_be} it: it holds the reciprocals", _invert
    if scale.kind == "tensor":
        yield (
            "second_level",
            f"{name} is applied once too often: the other scale of these codes contains it already",
            np.ones_like,
        )
    else:
        yield "unscaled", f"the codes are the values: {name} does not belong to them", np.ones_like
    yield "applied_twice", f"{name} holds the square of the right scale: it was applied twice", np.sqrt
    yield "scaled_twice", f"codes were scaled twice: {name} has to be applied twice as well", np.square


def _other_numbers(evidence: Evidence, scale: Scale) -> Iterator[tuple[str, str, Float32Array]]:
    name, raw = escape(scale.name), evidence.pair.store.whole(scale.name)
    stored = scale_numbers(evidence.pair.store, scale)
    if scale.encoding != "E8M0" and np.all((stored >= 0) & (stored <= 254) & (stored == np.rint(stored))):
        exponents = np.ldexp(np.float32(1), stored.astype(np.int32) - 127)
        words = f"the numbers of {name} are exponents (E8M0), {stored.min():g} to {stored.max():g}, read as integers"
        yield "e8m0_as_integer", words, exponents
    if raw.size == stored.size:
        for other in _SCALE_FORMATS:
            if other != scale.encoding:
                read = numbers(raw, other).reshape(stored.shape)
                yield "scale_format", f"the bytes of {name} are {_kind(other)}, read as {_kind(scale.encoding)}", read
    size = _NUMBER_BYTES.get(scale.encoding)
    if size is not None and raw.size == size * stored.size:
        swapped = np.ascontiguousarray(raw.reshape(-1, size)[:, ::-1]).reshape(-1)
        words = f"the bytes of each number of {name} stand in the other order"
        yield "byte_order", words, numbers(swapped, scale.encoding).reshape(stored.shape)


def _kind(encoding: str) -> str:
    return _SCALE_WORDS.get(encoding, encoding)


def _changed(change: Callable[[Float32Array], Float32Array], grid: Float32Array) -> Float32Array:
    with np.errstate(all="ignore"):
        return change(grid)


def _tried(evidence: Evidence, name: str, message: str, grids: dict[str, Float32Array]) -> Iterator[Trial]:
    if all(np.array_equal(grid, evidence.grids[scale], equal_nan=True) for scale, grid in grids.items()):
        return
    found = try_reading(evidence, Reading(name, message, evidence.factors_under(grids)))
    if found is not None:
        yield found
