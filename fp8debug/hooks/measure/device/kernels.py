"""What the two ways to measure on a device have in common."""

from __future__ import annotations

from typing import Protocol

import torch

from fp8debug.hooks.measure.device.tally import Tally


class Kernels(Protocol):
    """Adds what is to be known of some elements to a tally: launches only, nothing waits.

    `block` is a contiguous vector, at an address divisible by 8, of elements `first`, `first + 1`, … of the tensor in
    logical order; `first` elements are a multiple of 8 bytes.
    """

    @property
    def name(self) -> str:
        """'triton' or 'torch'."""

    def add_health(self, block: torch.Tensor, first: int, tally: Tally) -> None:
        """Extremes, zeros and what is not finite, by element; not for FP8."""

    def add_counts(self, block: torch.Tensor, first: int, tally: Tally) -> None:
        """Occurrences of each code, the sums of the checksum and, if the histogram says the health, non-finite rows."""
