"""What Hopper's FP8 tensor cores lose while they add: an exact integer model of their accumulation.

The cores do not add in FP32. They take 32 products at a time, and the accumulator with them:

    E    = largest exponent among the non-zero products (the sum of the operands' exponents, a subnormal operand
           counting as of the format's lowest normal exponent) and the accumulator
    sum  = every term truncated towards zero to a multiple of 2^(E - 13), added exactly
    accumulator = sum, truncated towards zero to 13 bits below its own leading one

Fast accumulation runs so through the whole contraction; promoted accumulation (`use_fast_accum=False`, and what
DeepGEMM does by hand) starts anew every 128 elements and adds the pieces in FP32. Truncation always shrinks, so on
operands of one sign the error is a bias that grows with the contraction.

Source: bit for bit as cuBLASLt 12.8 on an H100 PCIe without split-K, which is what the emulator mmaemu was validated
on (the block step after F. A. Khattak and M. Mikaitis, "Accurate Models of NVIDIA Tensor Cores", arXiv:2512.07004).
Other Hopper parts are taken to do the same. Split-K, bias and Blackwell are not modelled.

`hopper_scalar` is the slow twin, in Python's integers; it shares no code with `hopper`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fp8debug.formats import E4M3, Float32Array, Format, fake_quantize

PROMOTED_EVERY = 128
"""Elements of the contraction after which cuBLAS and DeepGEMM add to FP32."""

_BLOCK = 32
_FRACTION_BITS = 13
_TILE = 64  # outputs a side: the temporaries of a block, three times 512 KiB, stay near the core
_NO_TERM = np.float32(2.0**-100)  # stands for the largest exponent where every term is zero
_EXPONENT = np.uint32(0x7F800000)
_KEPT = np.uint32(0xFFFFFFFF << (23 - _FRACTION_BITS) & 0xFFFFFFFF)


def hopper(
    a: Float32Array,
    b: Float32Array,
    *,
    promote_every: int | None,
    a_format: Format = E4M3,
    b_format: Format = E4M3,
) -> Float32Array:
    """a @ b.T as Hopper's FP8 tensor cores accumulate it, before any scale.

    Args:
        a: float32, shape (M, K), each a value of `a_format`.
        b: float32, shape (N, K), each a value of `b_format`.
        promote_every: None for fast accumulation; else after how many elements of K, a multiple of 32, the sum so
            far is added to FP32 (`PROMOTED_EVERY` on hardware).
        a_format, b_format: they matter beyond the values, since a subnormal is aligned as the lowest normal.

    Returns:
        float32, shape (M, N); zero results are +0. A term that is NaN or infinite makes its output what IEEE
        arithmetic makes of it (infinity times zero and infinity minus infinity are NaN). K = 0 gives zeros.

    Raises:
        TypeError: an operand is not float32.
        ValueError: shapes that do not fit, an operand that is not of its format, a bad `promote_every`.
    """
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise ValueError(f"expected a (M, K) and b (N, K), got {a.shape} and {b.shape}")
    _require_promotion(promote_every)
    left, right = _operand(a, a_format), _operand(b, b_format)
    result = np.empty((a.shape[0], b.shape[0]), dtype=np.float32)
    for rows in _slices(a.shape[0], _TILE):
        for columns in _slices(b.shape[0], _TILE):
            result[rows, columns] = _tile(left.outputs(rows), right.outputs(columns), promote_every)
    return _with_non_finite(result, a, b)


def descale(
    accumulated: Float32Array,
    scale_inv_a: Float32Array | np.float32,
    scale_inv_b: Float32Array | np.float32,
    addend: Float32Array | float = 0.0,
) -> Float32Array:
    """What is made of the accumulator: float32(accumulated * float32(scale_inv_a * scale_inv_b) + addend).

    One fused multiply-add per element, as in cuBLAS, so that an exact zero is +0.

    Args:
        accumulated: float32, (M, N).
        scale_inv_a, scale_inv_b: float32, a number for the operand, or (M, 1) and (1, N), one a line.
        addend: what earlier pieces of the contraction came to, float32, (M, N).

    Returns:
        float32, (M, N).
    """
    factor = np.multiply(scale_inv_a, scale_inv_b, dtype=np.float32).astype(np.float64)
    result: Float32Array = (accumulated.astype(np.float64) * factor + addend).astype(np.float32)
    return result


def hopper_scalar(
    a: Sequence[float],
    b: Sequence[float],
    *,
    promote_every: int | None,
    a_format: Format = E4M3,
    b_format: Format = E4M3,
) -> float:
    """Slow exact twin of `hopper` for one output: K values of each operand, arguments as there."""
    terms = [x * y for x, y in zip(a, b, strict=True)]
    if not all(map(math.isfinite, terms)):
        return sum(terms)
    # In units of 2^-45 every number is an integer: products are multiples of 2^-32, and 13 bits are kept below them.
    products = [int(math.ldexp(term, 45)) for term in terms]
    exponents = [
        max(math.frexp(x)[1] - 1, 1 - a_format.bias) + max(math.frexp(y)[1] - 1, 1 - b_format.bias) + 45
        for x, y in zip(a, b, strict=True)
    ]
    total = accumulator = 0
    for start in range(0, len(terms), 32):
        if promote_every is not None and start % promote_every == 0:
            total, accumulator = _nearest(total + accumulator, 24), 0
        block = slice(start, start + 32)
        aligned = [e for product, e in zip(products[block], exponents[block], strict=True) if product]
        if accumulator:
            aligned.append(abs(accumulator).bit_length() - 1)
        unit = 1 << (max(aligned, default=45) - 13)
        added = sum(_truncated(term, unit) for term in [*products[block], accumulator])
        accumulator = _truncated(added, 1 << max(abs(added).bit_length() - 14, 0))
    return math.ldexp(_nearest(total + accumulator, 24), -45)


class _Operand(NamedTuple):
    """Values and the powers of two they are aligned by (0 for a zero), both (K, outputs)."""

    values: Float32Array
    powers: Float32Array

    def outputs(self, chosen: slice) -> _Operand:
        return _Operand(self.values[:, chosen], self.powers[:, chosen])


def _operand(x: Float32Array, fmt: Format) -> _Operand:
    finite = np.where(np.isfinite(x), x, np.float32(0)).T.copy()
    if not np.array_equal(fake_quantize(finite, fmt), finite):
        raise ValueError(f"expected values of {fmt.name}: quantize the operands first, or name their format")
    powers = np.maximum(_power_of_two(finite), np.float32(fmt.min_normal))
    powers[finite == 0] = 0
    return _Operand(finite, powers)


def _tile(a: _Operand, b: _Operand, promote_every: int | None) -> Float32Array:
    k = a.values.shape[0]
    total = np.zeros((a.values.shape[1], b.values.shape[1]), dtype=np.float32)
    for piece in _slices(k, promote_every or max(k, 1)):
        total += _chain(a, b, piece)  # from +0: a sum of -0 does not stay
    return total


def _chain(a: _Operand, b: _Operand, piece: slice) -> Float32Array:
    """One accumulator from zero through a piece of the contraction.

    Terms are integers held in float32, several times as fast as int64 and exact: 33 terms below 2^15 stay below 2^24.
    """
    accumulator = np.zeros((a.values.shape[1], b.values.shape[1]), dtype=np.float32)
    for start in range(piece.start, piece.stop, _BLOCK):
        block = slice(start, min(start + _BLOCK, piece.stop))
        largest = (a.powers[block, :, None] * b.powers[block, None, :]).max(axis=0)
        np.maximum(largest, _power_of_two(accumulator), out=largest)
        np.maximum(largest, _NO_TERM, out=largest)
        per_unit = np.float32(2.0**_FRACTION_BITS) / largest
        terms = a.values[block, :, None] * b.values[block, None, :]
        terms *= per_unit
        np.trunc(terms, out=terms)
        added = terms.sum(axis=0)
        added += np.trunc(accumulator * per_unit)
        added /= per_unit
        accumulator = (added.view(np.uint32) & _KEPT).view(np.float32)
    return accumulator


def _with_non_finite(result: Float32Array, a: Float32Array, b: Float32Array) -> Float32Array:
    """`result` with what IEEE arithmetic gives wherever a term is not finite."""
    affected = ~(np.isfinite(a).all(axis=0) & np.isfinite(b).all(axis=0))
    if not affected.any():
        return result
    with np.errstate(invalid="ignore"):  # infinity times zero is NaN, as it should be
        terms = np.einsum("mk,nk->mn", a[:, affected], b[:, affected])  # a BLAS may leave zeros out
    return np.where(np.isfinite(terms), result, terms)


def _power_of_two(x: Float32Array) -> Float32Array:
    return (x.view(np.uint32) & _EXPONENT).view(np.float32)


def _slices(length: int, step: int) -> Iterator[slice]:
    return (slice(start, min(start + step, length)) for start in range(0, length, step))


def _require_promotion(promote_every: int | None) -> None:
    if promote_every is not None and (promote_every < _BLOCK or promote_every % _BLOCK):
        raise ValueError(f"promote_every is {promote_every}, expected None or a positive multiple of {_BLOCK}")


def _truncated(value: int, unit: int) -> int:
    kept = abs(value) // unit * unit
    return kept if value > 0 else -kept


def _nearest(value: int, bits: int) -> int:
    """`value` to `bits` significant bits, to nearest, ties to even."""
    unit = 1 << max(abs(value).bit_length() - bits, 0)
    half = 2 * abs(value) + unit
    steps, rest = divmod(half, 2 * unit)
    steps -= rest == 0 and steps % 2 == 1
    return steps * unit if value > 0 else -steps * unit
