"""What a framework's GEMM in low precision really read: its codes counted, its scale, what it lost of the tensor.

Nothing here waits for an accelerator on its own account: scales and sums are computed where the tensors are and copied
to the host without waiting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from fp8debug.formats import Format, decode
from fp8debug.hooks.dtypes import FP8, FP8_DTYPES, format_of
from fp8debug.hooks.measure import checksum, codes, layout
from fp8debug.hooks.measure.engine import Counted, Engine, UnsupportedDtype
from fp8debug.hooks.measure.health import Health
from fp8debug.hooks.observed import Observed, Payload
from fp8debug.hooks.scalars import Numbers, Scalar, as_numbers, as_scalar
from fp8debug.metrics import ErrorSums
from fp8debug.recipes import scale_inv
from fp8debug.replay import ScaleInForce

_CHUNK, _CPU_CHUNK = 1 << 20, 1 << 16
"""Elements of one float64 temporary; on the CPU few enough to stay in its caches."""


class PayloadFacts(NamedTuple):
    """What is known of a payload beside its codes."""

    fmt: Format
    recipe: str | None
    """None where the codes are all there is."""
    scale_inv: Scalar | None
    """Factor that all codes are multiplied with; None: unknown, or one a block."""
    block_scales: Numbers | None
    """Smallest, median and largest factor before the cast, where there is one a block."""
    n_blocks: int
    scales: Sequence[ScaleInForce]
    lost: Numbers | None
    """Sums of `lost_sums`, where the tensor is at hand in high precision."""
    is_alone: bool
    """Whether there is nothing but the codes."""

    def in_force(self) -> ScaleInForce | None:
        """The one scale of all codes as the framework's own; None where there is no such."""
        if self.recipe is None or self.scale_inv is None:
            return None
        inverse = np.float32(float(self.scale_inv))
        for given in self.scales:
            if (given.recipe, given.fmt) == (self.recipe, self.fmt):
                return given._replace(scale=scale_inv(inverse), scale_inv=inverse)
        nothing = (None, None, None, None, None)
        return ScaleInForce(self.recipe, self.fmt, False, scale_inv(inverse), inverse, *nothing, "ok")


def payload_of(seen: Observed, value: torch.Tensor) -> Payload | None:
    """The payload of what was seen: also where its `value`, unwrapped, is nothing but codes of a known dtype."""
    if seen.payload is not None or value.dtype.itemsize > 1:
        return seen.payload
    fmt = format_of(value.dtype) if value.dtype in FP8_DTYPES else None
    return None if fmt is None else Payload(value, fmt, float("nan"), "")


def is_codes(value: torch.Tensor) -> bool:
    """Whether a tensor holds codes, and no numbers of high precision."""
    return value.dtype is torch.uint8 or format_of(value.dtype) is not None


def facts_of(payload: Payload, value: torch.Tensor | None, gemm_dtype: torch.dtype, *, summed: bool) -> PayloadFacts:
    """What is known of a payload beside its codes; sums, if wanted, against `value`, the tensor in high precision."""
    inverse = payload.scale_inv
    is_known = bool(payload.recipe)
    n_scales = inverse.numel() if isinstance(inverse, torch.Tensor) else 1
    one = is_known and n_scales == 1
    lost = None
    if summed and is_known and value is not None and _fits(payload, value):
        lost = as_numbers(lost_sums(value.reshape(payload.codes.shape), gemm_dtype, payload))
    return PayloadFacts(
        payload.fmt,
        payload.recipe or None,
        as_scalar(inverse.reshape(()) if isinstance(inverse, torch.Tensor) else inverse) if one else None,
        as_numbers(_spread(inverse)) if isinstance(inverse, torch.Tensor) and n_scales > 1 else None,
        n_scales,
        payload.scales,
        lost,
        value is None,
    )


def _fits(payload: Payload, value: torch.Tensor) -> bool:
    """Whether codes, scale and tensor belong to each other by their shapes."""
    held, inverse = payload.codes, payload.scale_inv
    if not is_codes(held) or held.numel() != value.numel():
        return False
    if not isinstance(inverse, torch.Tensor) or inverse.numel() == 1:
        return True
    pairs = zip(reversed(inverse.shape), reversed(held.shape), strict=False)
    return inverse.dim() <= held.dim() and all(size in (1, whole) for size, whole in pairs)


def health_of(engine: Engine, payload: Payload) -> Health:
    """Take the health of the codes of a payload, before any scale; raises UnsupportedDtype."""
    held = as_float8(payload)
    return count_codes(engine, payload).health if held is None else engine.health(held, held.dtype)


def count_codes(engine: Engine, payload: Payload) -> Counted:
    """Count the codes of a payload by value, before any scale.

    Raises:
        UnsupportedDtype: the codes are neither in a float8 dtype nor uint8, or have more bits than their format.
    """
    float8, fmt = as_float8(payload), payload.fmt
    if float8 is not None:
        return engine.count(float8, float8.dtype)
    host = payload.codes.detach().cpu()
    s1 = s2 = 0
    counts = np.zeros(256, np.int64)
    for block in layout.flat_blocks(host):
        s1, s2 = checksum.fletcher(layout.raw_bytes(block), s1, s2)
        counts += np.bincount(layout.as_array(block), minlength=256)
    size = 1 << fmt.bits
    if counts[size:].any():
        raise UnsupportedDtype(f"payload with codes of more than {fmt.bits} bits: expected {fmt.name}, one code a byte")
    values, counts = decode(np.arange(size, dtype=np.uint8), fmt), counts[:size]
    kept = np.flatnonzero((counts != 0) & np.isfinite(values))
    found = codes.health_of_values(values, counts)
    return Counted(found, values[kept], counts[kept], checksum.finish(s1, s2), None)


def as_float8(payload: Payload) -> torch.Tensor | None:
    """The codes in a dtype that engines count; None where torch has none for the format."""
    held, fmt = payload.codes.detach(), payload.fmt
    if held.dtype in FP8_DTYPES:
        return held
    if held.dtype is not torch.uint8:
        raise UnsupportedDtype(f"payload in {held.dtype}: expected a float8 dtype or uint8 codes")
    return held.view(FP8[fmt.name]) if fmt.name in FP8 else None


def decoded(held: torch.Tensor, fmt: Format) -> torch.Tensor:
    """Values of codes, float32 of the same shape, exact; NaN for codes with more bits than the format."""
    if held.dtype is torch.uint8 and fmt.name in FP8:
        held = held.view(FP8[fmt.name])
    if held.dtype is not torch.uint8:
        return held.to(torch.float32)
    table = torch.full((256,), torch.nan)  # an index out of bounds would be the end of an accelerator's context
    table[: 1 << fmt.bits] = torch.from_numpy(decode(np.arange(1 << fmt.bits, dtype=np.uint8), fmt))
    return table.to(held.device)[held.long()]


def lost_sums(value: torch.Tensor, gemm_dtype: torch.dtype, payload: Payload) -> torch.Tensor:
    """What the payload lost of the tensor, element by element in float64, q = code * scale_inv.

    Args:
        value: high precision, of the shape of the payload's codes.
        gemm_dtype: FP32 values are rounded to it first, where it is BF16 or FP16.

    Returns:
        float64, (8,), on the tensors' device: n, n_nonzero, n_underflow, n_overflow, sum_x2, sum_q2, sum_xq, sum_err2
        over the finite elements of `value`, as in `ErrorSums`.
    """
    total = torch.zeros(8, dtype=torch.float64, device=value.device)
    threshold = payload.fmt.overflow_threshold
    for part, held, inverse in _chunks(value, payload):
        x32 = (part.to(gemm_dtype) if gemm_dtype in (torch.bfloat16, torch.float16) else part).to(torch.float32)
        finite = torch.isfinite(x32)
        x32 = torch.where(finite, x32, 0.0)
        scaled = (x32 / inverse.float()).abs()
        x = x32.double().reshape(-1)
        q = torch.where(finite, decoded(held, payload.fmt).double() * inverse, 0.0).reshape(-1)
        beyond = scaled >= threshold if payload.fmt.overflow_at_threshold else scaled > threshold
        nonzero = x != 0
        flags = (finite, nonzero, nonzero & (q == 0), beyond)
        error = x - q
        sums = (x.dot(x), q.dot(q), x.dot(q), error.dot(error))
        total += torch.stack([*(flag.count_nonzero().double() for flag in flags), *sums])
    return total


def error_sums(lost: Numbers) -> ErrorSums:
    """The numbers of `lost_sums` by name; the low_ sums, for which values would have to be sorted, are left at 0."""
    n, n_nonzero, n_underflow, n_overflow, *sums = lost.tolist()
    return ErrorSums(int(n), int(n_nonzero), int(n_underflow), int(n_overflow), *sums)


def _chunks(value: torch.Tensor, payload: Payload) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Slices along the first axis: values, codes, and float64 factors that broadcast to them."""
    held, inverse = payload.codes.detach(), payload.scale_inv
    factor = inverse.detach() if isinstance(inverse, torch.Tensor) else torch.full((), inverse, device=value.device)
    factor = factor.to(value.device, torch.float64)
    if value.dim() < 2:
        value, held = value.reshape(1, -1), held.reshape(1, -1)
    factor = factor.expand(held.shape) if factor.numel() > 1 else factor.reshape(())
    rows = max(1, (_CPU_CHUNK if value.device.type == "cpu" else _CHUNK) // max(1, value.shape[1:].numel()))
    for start in range(0, value.shape[0], rows):
        part = slice(start, start + rows)
        yield value[part], held[part], factor[part] if factor.dim() else factor


def _spread(inverse: torch.Tensor) -> torch.Tensor:
    scales = 1.0 / inverse.detach().double().flatten()
    return torch.stack([scales.amin(), scales.median(), scales.amax()])
