"""How large the values of a quantised tensor are, from a sample of its lines."""

from __future__ import annotations

from math import nan, prod, sqrt

import numpy as np

from fp8debug.analysis.checkpoint.facts import Int64Array
from fp8debug.analysis.checkpoint.measuring.counting import counted
from fp8debug.analysis.checkpoint.measuring.sampling import Spread
from fp8debug.analysis.checkpoint.numbers import unpacked
from fp8debug.analysis.checkpoint.records import Quantised
from fp8debug.analysis.checkpoint.values import Dequantiser, Float64Array
from fp8debug.formats import ELEMENT_FORMATS, Uint8Array, decode


class Magnitude:
    """Codes of a sample counted, and their dequantised values squared.

    Args:
        quantised: the tensor.
        factors: what its codes are multiplied with; None: the scales do not fit.
        n_bytes: of the tensor.
    """

    def __init__(self, quantised: Quantised, factors: Dequantiser | None, n_bytes: int) -> None:
        fmt = ELEMENT_FORMATS[quantised.fmt]
        self.histogram: Int64Array = np.zeros(1 << fmt.bits, np.int64)
        self._is_packed, self._factors = quantised.is_packed, factors
        self._values: Float64Array = decode(np.arange(1 << fmt.bits, dtype=np.uint8), fmt).astype(np.float64)
        self._spread = Spread(n_bytes)
        self._factor = _only_factor(quantised, factors)
        self._sum, self._n = 0.0, 0

    def add(self, raw: Uint8Array, first_line: int) -> None:
        """Take a band in, or the part of it that is sampled: uint8 (lines, bytes of a line)."""
        rows = self._spread.piece(len(raw))
        if rows.start == rows.stop:
            return
        codes = unpacked(raw[rows]) if self._is_packed else raw[rows]
        self.histogram += counted(codes.reshape(-1), self.histogram.size)
        if self._factor is None and self._factors is not None:
            values = np.take(self._values, codes, mode="clip")
            with np.errstate(all="ignore"):  # scales may be anything
                values *= self._factors.factors(first_line + rows.start, first_line + rows.stop)
            total, n = _squares(values)
            self._sum += total
            self._n += n

    @property
    def rms_codes(self) -> float:
        """Root mean square of the codes that are finite."""
        finite = np.isfinite(self._values)
        n = int(self.histogram[finite].sum())
        return sqrt(float(self.histogram[finite] @ np.square(self._values[finite])) / n) if n else 0.0

    @property
    def rms(self) -> float:
        """Root mean square of the dequantised values that are finite."""
        if self._factors is None:
            return nan
        if self._factor is not None:
            return self.rms_codes * abs(self._factor) if np.isfinite(self._factor) else 0.0
        return sqrt(self._sum / self._n) if self._n else 0.0


def _only_factor(quantised: Quantised, factors: Dequantiser | None) -> float | None:
    """The factor of all codes, where that is one number."""
    if factors is None or not quantised.n:
        return None
    if any(prod(scale.shape) > 1 for scale in quantised.scales):
        return None
    return float(factors.factors(0, 1)[0, 0])


def _squares(values: Float64Array) -> tuple[float, int]:
    flat = values.reshape(-1)
    total = float(np.einsum("i,i->", flat, flat))
    if not np.isfinite(total):
        flat = flat[np.isfinite(flat)]
        total = float(np.einsum("i,i->", flat, flat))
    return total, flat.size
