"""Bytes as the numbers that they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from fp8debug.formats import FORMATS, Float32Array, Uint8Array, decode

_Number = TypeVar("_Number", bound=np.generic)
_CODES_AT_A_TIME = 1 << 16

FORMAT_OF_DTYPE = {
    "F8_E4M3": "E4M3",
    "F8_E5M2": "E5M2",
    "F8_E4M3FNUZ": "E4M3FNUZ",
    "F8_E5M2FNUZ": "E5M2FNUZ",
    "F8_E8M0": "E8M0",
}
"""Name of the format of a dtype of 8 bits."""
_NUMPY = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "|u1",
    "BOOL": "|u1",
}


def numbers(raw: Uint8Array, encoding: str) -> Float32Array:
    """Bytes as the numbers they are, float32; float64 values are rounded.

    Args:
        raw: bytes, any shape; the last axis is taken together where a number has several bytes.
        encoding: a dtype of `Stored`, or the name of a format of 8 bits.

    Returns:
        float32, of the same shape but for the last axis.

    Raises:
        KeyError: an encoding that holds no numbers, or packed ones.
    """
    encoding = FORMAT_OF_DTYPE.get(encoding, encoding)
    if encoding in FORMATS:
        codes = np.arange(256) & ((1 << FORMATS[encoding].bits) - 1)
        table = decode(codes.astype(np.uint8), FORMATS[encoding])
        values = np.empty(raw.shape, np.float32)
        for part, some in zip(_slices(values.reshape(-1)), _slices(raw.reshape(-1)), strict=True):
            np.take(table, some, mode="clip", out=part)  # twice as fast as looking for codes out of range
        return values
    if encoding == "BF16":
        bits = raw.view("<u2").astype(np.uint32)
        bits <<= 16
        return bits.view(np.float32)
    with np.errstate(over="ignore"):
        return raw.view(_NUMPY[encoding]).astype(np.float32)


def _slices(flat: npt.NDArray[_Number]) -> Iterator[npt.NDArray[_Number]]:
    """Parts that fit the cache together with the eight bytes of an index that numpy makes of each code."""
    for first in range(0, flat.size, _CODES_AT_A_TIME):
        yield flat[first : first + _CODES_AT_A_TIME]


def can_be_numbers(encoding: str) -> bool:
    """Whether `numbers` reads it."""
    return encoding == "BF16" or encoding in _NUMPY or FORMAT_OF_DTYPE.get(encoding, encoding) in FORMATS


def unpacked(raw: Uint8Array, is_high_first: bool = False) -> Uint8Array:
    """Codes of 4 bits: (lines, bytes) to (lines, 2 x bytes), the low half of a byte first, or the high half."""
    codes = np.empty((raw.shape[0], raw.shape[1], 2), np.uint8)
    np.bitwise_and(raw, 15, out=codes[:, :, int(is_high_first)])
    np.right_shift(raw, 4, out=codes[:, :, 1 - int(is_high_first)])
    return codes.reshape(raw.shape[0], -1)
