"""Channels by both engines against a double loop in Python, and bins against exact arithmetic."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch

from fp8debug.formats import E4M3, E5M2, Format, decode_scalar, encode_scalar
from fp8debug.hooks.measure import channels as ch
from fp8debug.hooks.measure import load_engine
from fp8debug.hooks.measure.channels import AxisSums, ChannelMeter, Spread
from fp8debug.hooks.measure.strips import as_matrix, sample_of

ENGINES = {name: load_engine(name) for name in ("numba", "torch")}
REQUESTS = [(np.float32(100), E4M3), (np.float32(7000), E5M2), (np.float32(2.0**-6), E4M3)]
Axis = tuple[AxisSums, npt.NDArray[np.int64]]


def tensor() -> torch.Tensor:
    """(140, 24): tokens of many sizes, an outlier channel, a channel and a token of zeros, NaN, Inf, exact values."""
    g = torch.Generator().manual_seed(4)
    t = torch.randn(140, 24, generator=g) * torch.exp(3 * torch.randn(140, 1, generator=g))
    t[:, 7] *= 100
    t[:, 11] = 0
    t[33] = 0
    t[50] = 0.5
    t[2, 3], t[2, 4], t[9, 5] = torch.nan, torch.inf, -torch.inf
    t[:, 20] = torch.nan
    return t.to(torch.bfloat16)


def measured(
    name: str, t: torch.Tensor, requests: Sequence[tuple[np.float32, Format]], budget: int
) -> tuple[Axis, Axis]:
    sample = sample_of(as_matrix(t), "row", budget)
    meter = ChannelMeter(ENGINES[name], sample.n_sampled_lines, sample.length, requests)
    for strip in sample.strips(as_matrix(t), t.dtype):
        meter.add(strip)
    return meter.axes()


class Channel(NamedTuple):
    """One channel, summed in Python."""

    amax: float
    n_nonzero: int
    n_lost: int
    x2: float
    err2: float


def channel(values: Sequence[float], scale: np.float32, fmt: Format) -> Channel:
    """By the slow codec, element by element; what is not finite counts as zero."""
    kept = [abs(v) for v in values if math.isfinite(v) and v]
    inverse = np.float32(1) / scale
    back = [
        float(np.float32(decode_scalar(encode_scalar(float(np.float32(v) * scale), fmt), fmt)) * inverse) for v in kept
    ]
    n_lost = sum(q == 0 for q in back)
    err2 = math.fsum((v - q) ** 2 for v, q in zip(kept, back, strict=True))
    return Channel(max(kept, default=0.0), len(kept), n_lost, math.fsum(v * v for v in kept), err2)


@pytest.mark.parametrize("engine", ["numba", "torch"])
@pytest.mark.parametrize("axis", [0, 1], ids=["rows", "columns"])
def test_every_channel_by_hand(axis: int, engine: str) -> None:
    t = tensor()
    sums, numbers = measured(engine, t, REQUESTS, 1 << 20)[axis]
    lines = t.float().numpy() if axis == 0 else t.float().numpy().T
    assert numbers.tolist() == list(range(len(lines)))
    for i, (scale, fmt) in enumerate(REQUESTS):
        by_hand = [channel(line.tolist(), scale, fmt) for line in lines]
        np.testing.assert_array_equal(sums.amax, [c.amax for c in by_hand])
        np.testing.assert_array_equal(sums.n_nonzero, [c.n_nonzero for c in by_hand])
        np.testing.assert_array_equal(sums.n_kept[i], [c.n_nonzero - c.n_lost for c in by_hand])
        np.testing.assert_allclose(sums.x2, [c.x2 for c in by_hand], rtol=1e-12)
        np.testing.assert_allclose(sums.err2[i], [c.err2 for c in by_hand], rtol=1e-12)

        sizes = ch.amax_spread(sums, numbers)
        assert (sizes.n_channels, sizes.n_zero, sizes.n_exact) == (len(lines), sum(c.amax == 0 for c in by_hand), None)
        assert binned(sizes) == Counter(math.floor(4 * math.log2(c.amax)) for c in by_hand if c.amax)
        assert (sizes.worst_channel, sizes.worst_value) == worst([c.amax for c in by_hand], max)

        lost = ch.underflow_spread(sums, numbers, i)
        shares = [c.n_lost / c.n_nonzero if c.amax else None for c in by_hand]
        assert binned(lost) == Counter(c.n_lost * 100 // c.n_nonzero for c in by_hand if c.amax)
        assert (lost.worst_channel, lost.worst_value, lost.n_exact) == (*worst(shares, max), None)

        sqnr = ch.sqnr_spread(sums, numbers, i)
        db = [10 * math.log10(c.x2 / c.err2) if c.err2 else None for c in by_hand]
        assert binned(sqnr) == Counter(math.floor(number) for number in db if number is not None)
        assert sqnr.n_exact == sum(c.amax > 0 and c.err2 == 0 for c in by_hand)
        index, lowest = worst(db, min)
        assert sqnr.worst_channel == index
        assert sqnr.worst_value == pytest.approx(lowest, rel=1e-12)


def binned(spread: Spread) -> Counter[int]:
    return Counter(dict(zip(spread.bins.tolist(), spread.counts.tolist(), strict=True)))


def worst(values: Sequence[float | None], of: object) -> tuple[int, float]:
    """Index and value of the first extreme one."""
    known = [v for v in values if v is not None]
    extreme = max(known) if of is max else min(known)
    return values.index(extreme), extreme


def test_sampled_rows_keep_their_numbers() -> None:
    t = torch.arange(1, 1025).float()[:, None].expand(1024, 8)
    (rows, numbers), (columns, column_numbers) = measured("numba", t, [], 2 * 128 * 8)
    assert numbers.tolist() == [*range(256, 384), *range(768, 896)]
    np.testing.assert_array_equal(rows.amax, numbers + 1)
    assert ch.amax_spread(rows, numbers).worst_channel == 895
    assert column_numbers.tolist() == list(range(8)) and columns.amax.tolist() == [896.0] * 8


def test_quarter_octaves_are_exact() -> None:
    """amax^4 against powers of two in integers: all positive BF16, and the float32 numbers around each edge."""
    bf16 = (np.arange(1, 0x7F80, dtype=np.uint32) << 16).view(np.float32)
    edges = np.array([2.0 ** (k / 4) for k in range(-590, 512, 7)], np.float32)
    values = np.concatenate([bf16, edges, np.nextafter(edges, np.float32(0)), np.nextafter(edges, np.float32(np.inf))])
    sums = AxisSums.zeros(values.size, 0)
    sums.amax[:] = values
    expected: Counter[int] = Counter()
    for value in values.tolist():
        numerator, denominator = value.as_integer_ratio()
        # The largest k with denominator^4 2^k <= numerator^4; the denominator is a power of two.
        expected[(numerator**4).bit_length() - 1 - 4 * (denominator.bit_length() - 1)] += 1
    assert binned(ch.amax_spread(sums, np.arange(values.size))) == expected


@pytest.mark.parametrize("engine", ["numba", "torch"])
def test_nothing_to_see(engine: str) -> None:
    for value in (0.0, math.nan):
        for sums, numbers in measured(engine, torch.full((3, 5), value), REQUESTS[:1], 1 << 20):
            n = len(numbers)
            for spread in (
                ch.amax_spread(sums, numbers), ch.sqnr_spread(sums, numbers, 0), ch.underflow_spread(sums, numbers, 0)
            ):  # fmt: skip
                assert (spread.n_channels, spread.n_zero, spread.n_exact or 0) == (n, n, 0)
                assert (spread.bins.size, spread.counts.size) == (0, 0)
                assert (spread.worst_channel, spread.worst_value) == (None, None)


@pytest.mark.parametrize("engine", ["numba", "torch"])
def test_a_scale_without_an_inverse(engine: str) -> None:
    """float32(1 / 2^-140) is infinite: everything is lost, which is the lowest bin and no error of ours."""
    (sums, numbers), _ = measured(engine, torch.ones(2, 16), [(np.float32(2.0**-140), E4M3)], 1 << 20)
    spread = ch.sqnr_spread(sums, numbers, 0)
    assert spread.counts.tolist() == [2] and spread.bins[0] < -3000
