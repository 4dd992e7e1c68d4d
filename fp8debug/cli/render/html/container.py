"""The data of a page as one text: base64 of gzip of a JSON header and the planes as small integers.

Before compression: uint32 little-endian length of the JSON, the JSON (UTF-8), the bytes of the planes one after the
other. A value is a code: 0 nothing known, 1 minus infinity (log2 of zero), 2 plus infinity, from 3 on
`offset + (code - 3) * unit`, which is log2 of the value for metrics that are read by their exponent. Codes are stored
row by row, each as its difference to the one left of it (the first: to 0) modulo 2**bits; planes of 16 bits have all
low bytes before all high bytes.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fp8debug.cli.render.document import without_nan

Floats = npt.NDArray[np.float32] | npt.NDArray[np.float64]
Codes = npt.NDArray[np.unsignedinteger[Any]]

UNKNOWN, MINUS_INFINITY, PLUS_INFINITY, FIRST = 0, 1, 2, 3
_CODES: dict[int, type[np.unsignedinteger[Any]]] = {8: np.uint8, 16: np.uint16}


@dataclass(frozen=True, slots=True)
class Detail:
    """How finely values are kept at best: finer differences mean little to a reader, and noise does not compress."""

    bits: int
    """Of a code: 8 or 16."""
    finest: Mapping[str, float]
    """Smallest step by unit; `log2` for values that are kept as exponents, in octaves."""


DETAILS = (
    Detail(16, {"log2": 2.0**-9, "bits": 2.0**-9, "dB": 2.0**-6, "share": 2.0**-20}),
    Detail(8, {"log2": 2.0**-5, "bits": 2.0**-5, "dB": 2.0**-4, "share": 2.0**-12}),
    Detail(8, {"log2": 2.0**-3, "bits": 2.0**-3, "dB": 2.0**-2, "share": 2.0**-10}),
)
"""The finest first."""


@dataclass(frozen=True, slots=True)
class Packed:
    """One plane as bytes, with what is needed to read it."""

    bits: int
    offset: float
    unit: float
    data: bytes


def pack(values: Floats, detail: Detail, *, unit: str = "", is_log2: bool = False) -> Packed:
    """Store a plane (n_layers, n_columns) in codes, rounded to the nearest.

    Args:
        values: NaN where nothing is known; zero and infinity are kept apart from numbers.
        detail: how finely.
        unit: of the values, as a `Metric` names it: how fine they are kept at best.
        is_log2: store the exponents; zero becomes minus infinity.

    What is not zero is never stored as zero, so that rare events stay visible.
    """
    x = np.asarray(values, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        numbers = np.log2(x) if is_log2 else x
    finite = numbers[np.isfinite(numbers)]
    step = _unit(finite, detail.bits, detail.finest.get("log2" if is_log2 else unit, 1.0))
    first = math.floor(finite.min() / step) if finite.size else 0
    codes = _codes(numbers, step, first, detail.bits, is_log2=is_log2)
    delta = np.diff(codes, axis=1, prepend=np.zeros((codes.shape[0], 1), dtype=codes.dtype))
    return Packed(detail.bits, first * step, step, _plain_bytes(delta))


def unpack(packed: Packed, shape: tuple[int, int]) -> npt.NDArray[np.float64]:
    """What `pack` stored, shape (n_layers, n_columns), as the page reads it: exponents stay exponents."""
    raw = np.frombuffer(packed.data, dtype=np.uint8)
    if packed.bits == 16:
        low, high = raw.reshape(2, -1).astype(np.uint16)
        raw = low + (high << np.uint16(8))
    codes = np.cumsum(raw.reshape(shape), axis=1, dtype=_CODES[packed.bits])
    values = packed.offset + (codes.astype(np.float64) - FIRST) * packed.unit
    for code, value in ((UNKNOWN, math.nan), (MINUS_INFINITY, -math.inf), (PLUS_INFINITY, math.inf)):
        values[codes == code] = value
    return values


def encode(header: Mapping[str, Any], planes: Sequence[Packed]) -> str:
    """The text. `planes` belong to `header["runs"][...]["planes"]`, in that order, whose places are filled in.

    The same input gives the same text. NaN and infinities in the header become null.
    """
    document = without_nan(header)
    at = 0
    for entry, plane in zip(_entries(document), planes, strict=True):
        entry.update(at=at, bits=plane.bits, offset=plane.offset, unit=plane.unit)
        at += len(plane.data)
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    words = text.encode("utf-8", "backslashreplace")  # a file name may hold half a character
    whole = b"".join([struct.pack("<I", len(words)), words, *(plane.data for plane in planes)])
    return base64.b64encode(gzip.compress(whole, 6, mtime=0)).decode("ascii")


def decode(text: str) -> tuple[dict[str, Any], list[npt.NDArray[np.float64]]]:
    """The header and the planes of `encode`, in Python: what the script of the page does."""
    whole = gzip.decompress(base64.b64decode(text))
    (n_words,) = struct.unpack_from("<I", whole)
    header: dict[str, Any] = json.loads(whole[4 : 4 + n_words])
    planes = []
    for run in header["runs"]:
        shape = (len(run["layers"]), len(run["first_steps"]))
        for entry in run["planes"]:
            start = 4 + n_words + entry["at"]
            data = whole[start : start + math.prod(shape) * entry["bits"] // 8]
            planes.append(unpack(Packed(entry["bits"], entry["offset"], entry["unit"], data), shape))
    return header, planes


def _entries(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for run in document["runs"]:
        yield from run["planes"]


def _unit(finite: npt.NDArray[np.float64], bits: int, finest: float) -> float:
    """The smallest power of two, not below `finest`, in which the range of `finite` fits into the codes."""
    n_units = 2**bits - FIRST - 2  # one is lost to each end: the range need not start at a multiple
    span = float(finite.max() - finite.min()) if finite.size else 0.0
    unit = finest
    while span > n_units * unit:
        unit *= 2
    return unit


def _codes(numbers: npt.NDArray[np.float64], unit: float, first: int, bits: int, *, is_log2: bool) -> Codes:
    is_finite = np.isfinite(numbers)
    units = np.rint(np.where(is_finite, numbers, 0.0) / unit)
    if not is_log2:
        units = np.where((units == 0) & (numbers != 0), np.sign(numbers), units)
    codes = np.where(is_finite, units - first + FIRST, UNKNOWN).astype(_CODES[bits])
    codes[np.isneginf(numbers)] = MINUS_INFINITY
    codes[np.isposinf(numbers)] = PLUS_INFINITY
    return codes


def _plain_bytes(delta: Codes) -> bytes:
    if delta.dtype == np.uint8:
        return delta.tobytes()
    return (delta & 0xFF).astype(np.uint8).tobytes() + (delta >> 8).astype(np.uint8).tobytes()
