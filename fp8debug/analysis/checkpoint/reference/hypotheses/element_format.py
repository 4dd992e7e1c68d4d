"""Codes that were read in another format than they were written in, or in another order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fp8debug.analysis.checkpoint.reference.hypotheses.evidence import Evidence
from fp8debug.analysis.checkpoint.reference.hypotheses.sums import applied, finite
from fp8debug.analysis.checkpoint.reference.hypotheses.transposed import transposed
from fp8debug.analysis.checkpoint.reference.hypotheses.trial import Reading, Trial, try_reading
from fp8debug.formats import FORMATS, Float32Array, Format, decode

_EIGHT_BITS = ("E4M3", "E5M2", "E4M3FNUZ", "E5M2FNUZ")
_SIX_BITS = ("E2M3", "E3M2")
_MUCH_LESS = 0.25
_FEWEST_CODES = 16
"""Fewer different ones may be those of any format."""


def other_formats(evidence: Evidence) -> Iterator[Trial]:
    """The same bytes in the other formats of as many bits."""
    if evidence.fmt is None:
        return
    names = next((group for group in (_EIGHT_BITS, _SIX_BITS) if evidence.fmt.name in group), ())
    for name in names:
        if name == evidence.fmt.name:
            continue
        fmt = FORMATS[name]
        words = _mixed_up(evidence, fmt)
        if words is not None:
            yield from _tried(
                evidence, _name(evidence.fmt, fmt), words, decode(evidence.raw, fmt), fmt, _rank(evidence, fmt)
            )
    if evidence.fmt.bits == 8:
        integers = evidence.raw.view(np.int8).astype(np.float32)
        yield from _tried(evidence, "integers", f"the codes are INT8, read as {evidence.fmt.name}", integers, None)
        offset = evidence.raw.astype(np.float32) - 128
        yield from _tried(
            evidence, "integers", f"the codes are UINT8 with 128 for zero, read as {evidence.fmt.name}", offset, None
        )


def other_orders(evidence: Evidence) -> Iterator[Trial]:
    """Halves of bytes exchanged, in all lines or in some, or packed in halves of a line; a square matrix transposed."""
    if evidence.quantised is not None and evidence.quantised.is_packed:
        for name, message, codes in _packings(evidence.codes):
            yield from _tried(evidence, name, message, codes, evidence.fmt)
        found = _swapped_in_lines(evidence)
        if found is not None:
            yield from _tried(evidence, "nibble_order", *found, evidence.fmt)
    yield from transposed(evidence)


def _name(read: Format, written: Format) -> str:
    is_fnuz = {read.name, written.name} in ({"E4M3", "E4M3FNUZ"}, {"E5M2", "E5M2FNUZ"})
    return "fnuz" if is_fnuz else "element_format"


def _mixed_up(evidence: Evidence, written: Format) -> str | None:
    """The sentence; None: the codes that are stored cannot be of that format."""
    assert evidence.fmt is not None
    read = evidence.fmt
    if _name(read, written) != "fnuz":
        return f"the codes are {written.name}, read as {read.name}"
    n_nan_written = int(np.count_nonzero(~np.isfinite(decode(evidence.raw, written))))
    if n_nan_written > 2 * evidence.n_nonfinite + 1e-6 * evidence.raw.size:
        return None
    words = (
        f"the bytes are {written.name}, read as {read.name}, where each means "
        f"{'half' if written.bias < read.bias else 'twice'} of what it meant: a format mix-up, not a scale error"
    )
    if evidence.n_nonfinite:
        n = evidence.n_nonfinite
        words += f"; {n:,} {'code is' if n == 1 else 'codes are'} NaN only because of it"
    return words


def _rank(evidence: Evidence, written: Format) -> int:
    """Whether anything but the factor of two speaks for FNUZ: a scale that is off by two would look alike."""
    assert evidence.fmt is not None
    if np.unique(evidence.raw[:: max(1, len(evidence.raw) // 64)]).size < _FEWEST_CODES:
        return 1
    if _name(evidence.fmt, written) != "fnuz" or evidence.n_nonfinite:
        return 0
    scale = evidence.quantised.grid_scale if evidence.quantised else None
    if scale is not None and scale.encoding == "E8M0":
        return 1
    if "FNUZ" in evidence.fmt.name:
        return 0
    # FNUZ has no negative zero, and its writers need not stop where E4M3 and E5M2 end.
    zeros = int(np.count_nonzero((evidence.raw == 0) & (evidence.x < 0)))
    negative_zeros = int(np.count_nonzero(evidence.raw == 0x80))
    ends_with_it = int((evidence.raw & 0x7F).max(initial=0)) == evidence.fmt.max_code
    return 0 if zeros >= 8 and not negative_zeros and not ends_with_it else 1


def _packings(codes: Float32Array) -> Iterator[tuple[str, str, Float32Array]]:
    pairs = codes.reshape(len(codes), -1, 2)
    swapped = np.ascontiguousarray(pairs[:, :, ::-1]).reshape(codes.shape)
    yield "nibble_order", "the two codes of each byte stand in the other order", swapped
    halves = np.concatenate([pairs[:, :, 0], pairs[:, :, 1]], axis=1)
    yield (
        "packing",
        "a byte holds a code of the first half of a line and one of its second half, not two neighbours",
        halves,
    )
    other = np.concatenate([pairs[:, :, 1], pairs[:, :, 0]], axis=1)
    yield "packing", "a byte holds a code of the second half of a line (low) and one of its first half (high)", other


def _swapped_in_lines(evidence: Evidence) -> tuple[str, Float32Array] | None:
    """Lines in which the other order fits, exchanged there alone; None: there are none, or all are so."""
    pairs = evidence.codes.reshape(len(evidence.codes), -1, 2)
    swapped = np.ascontiguousarray(pairs[:, :, ::-1]).reshape(evidence.codes.shape)
    as_is, other = (
        np.einsum("ij,ij->i", left, left, dtype=np.float64)
        for left in (evidence.x - evidence.values, evidence.x - applied(swapped, evidence.factors))
    )
    fits = other < _MUCH_LESS * as_is
    n = int(np.count_nonzero(fits))
    if n in (0, len(fits)):
        return None
    words = (
        f"the two codes of each byte stand in the other order in {n:,} of {len(fits):,} lines"
        f"{'' if evidence.is_whole else ' that were looked at'}, the first of them {int(evidence.lines[fits][0]):,}"
    )
    return words, np.where(fits[:, None], swapped, evidence.codes)


def _tried(
    evidence: Evidence, name: str, message: str, codes: Float32Array, fmt: Format | None, rank: int = 0
) -> Iterator[Trial]:
    # FNUZ differs by a factor alone.
    reading = Reading(name, message, evidence.factors, finite(codes), fmt, needs_codes=name == "fnuz", rank=rank)
    found = try_reading(evidence, reading)
    if found is not None:
        yield found
