"""Which part of a tensor is looked at more closely: the same one each time, spread over all of it."""

from __future__ import annotations

WHOLE_BYTES = 1 << 16
"""A tensor of so many bytes is sampled whole; of larger ones at least half as many are."""
SPARSEST = 64
"""Of a large tensor one byte in so many: of 16 M codes 262,144, whose rms is right to half a percent."""
_PIECES = 16
"""A piece is at least one in so many lines of a band: smaller ones cost more to take than to count."""
_GOLDEN = 0.6180339887498949


class Spread:
    """Takes a piece out of each band, so that together they are the wanted share.

    Args:
        n_bytes: of the tensor.
    """

    def __init__(self, n_bytes: int) -> None:
        self._step = 1 if n_bytes <= WHOLE_BYTES else min(SPARSEST, 2 * n_bytes // WHOLE_BYTES)
        self._owed = 0.0
        self._bands = 0

    def piece(self, rows: int) -> slice:
        """Rows of the next band to take, possibly none.

        Where in a band the piece lies changes from band to band: a fixed place would see the same rows of every block.
        """
        self._owed += rows / self._step
        taken = min(rows, int(self._owed)) if self._owed * _PIECES >= rows else 0
        self._owed -= taken
        self._bands += 1
        start = int((self._bands * _GOLDEN) % 1 * (rows - taken + 1))
        return slice(start, start + taken)
