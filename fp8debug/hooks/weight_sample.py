"""A weight at fixed positions, beside the codes that the GEMM read there: of which step they are can then be told.

Nothing here waits for an accelerator: what is picked is copied to the host while the training goes on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from fp8debug.hooks.observed import Payload
from fp8debug.hooks.payloads import PayloadFacts, decoded
from fp8debug.hooks.scalars import Numbers, as_numbers

POSITIONS = 4096
"""At most so many elements of a weight: enough for its SQNR to a few tenths of a decibel."""


class WeightSample(NamedTuple):
    """What was picked; `row` makes its cells of the table `wsample` that come after the record key."""

    stride: int
    numbers: Numbers
    """float32: the values in high precision, where there are any, then the values of the codes."""
    has_values: bool
    facts: PayloadFacts
    n_bytes: int

    def row(self, key: tuple[Any, ...]) -> Callable[[], tuple[Any, ...]]:
        """The row, to be made where waiting for a device hurts nobody."""

        def make() -> tuple[Any, ...]:
            found = self.numbers.tolist()
            middle = len(found) // 2 if self.has_values else 0
            is_blocked = self.facts.block_scales is not None
            inverse = 1.0 if is_blocked else self.facts.scale_inv
            values = found[:middle] if self.has_values else None
            return (
                *key,
                self.facts.fmt.name,
                self.stride,
                values,
                found[middle:],
                None if inverse is None else float(inverse),
            )

        return make


def stride_of(shape: torch.Size) -> int:
    """Distance of the positions in the flattened tensor: without a common factor with the length of a row, so that
    they are spread over its columns and not all in one."""
    stride = max(1, -(-shape.numel() // POSITIONS))
    while stride > 1 and math.gcd(stride, shape[-1]) > 1:
        stride += 1
    return stride


def weight_sample(value: torch.Tensor | None, payload: Payload, facts: PayloadFacts) -> WeightSample | None:
    """Pick elements of a weight and of its codes; None for an empty one.

    Args:
        value: the weight in high precision, of as many elements as there are codes; None: there is only the payload.
    """
    held = payload.codes.detach()
    if not held.numel() or not held.dim():
        return None
    stride = stride_of(held.shape)
    codes = decoded(held.reshape(-1)[::stride], payload.fmt)
    if facts.block_scales is not None and isinstance(payload.scale_inv, torch.Tensor):
        codes = codes * _factors(payload.scale_inv.detach(), held.shape, stride, codes)
    has_values = value is not None and value.numel() == held.numel()
    parts = [codes]
    if value is not None and has_values:
        parts.insert(0, value.detach().reshape(-1)[::stride].to(torch.float32))
    picked = torch.cat(parts)  # a copy: the weight may change before it is written
    return WeightSample(stride, as_numbers(picked), has_values, facts, picked.nbytes)


def _factors(inverse: torch.Tensor, shape: torch.Size, stride: int, codes: torch.Tensor) -> torch.Tensor:
    """The block's own factor at each position."""
    positions = torch.arange(codes.numel(), device=inverse.device) * stride
    return inverse.expand(shape)[torch.unravel_index(positions, shape)].to(codes.device, torch.float32)
