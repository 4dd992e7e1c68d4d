"""Sampled lines: how many, where, and that their text says which."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fp8debug.hooks.probe.lines import Lines, n_lines, spaced_lines, tiled_lines


def told(lines: Lines) -> list[int]:
    """The numbers, read off the text as a person would."""
    ranges, total = lines.text.split(" of ")
    whole = list(range(int(total)))
    return [n for part in ranges.split(",") for n in whole[slice(*(int(word) for word in part.split(":")))]]


@pytest.mark.parametrize("take", [spaced_lines, tiled_lines])
@pytest.mark.parametrize("wanted", [8, 17, 32])
def test_any_size(take: object, wanted: int) -> None:
    assert callable(take)
    for total in [1, 2, 7, 8, 9, 31, 32, 33, 40, 63, 64, 65, 127, 128, 129, 255, 257, 300, 513, 1000, 4096, 50257]:
        lines = take(total, wanted)
        numbers = lines.numbers().tolist()
        assert numbers == sorted(set(numbers)) == told(lines)
        assert len(lines) == len(numbers)
        assert numbers[0] >= 0 and numbers[-1] < total == lines.total
        assert len(numbers) <= min(total, wanted)
        if total <= wanted:
            assert numbers == list(range(total))


@pytest.mark.parametrize("total", [64, 96, 128, 200, 1024, 4096, 4097, 50257])
def test_spaced(total: int) -> None:
    """End to end, and out of step with any power of two."""
    numbers = spaced_lines(total, 32).numbers()
    assert len(numbers) == 32
    (distance,) = set(np.diff(numbers).tolist())
    assert distance % 2 == 1
    assert distance >= total / 32 - 2
    assert abs((numbers[0]) - (total - 1 - numbers[-1])) <= 1
    if distance > 1:
        assert set((numbers % 32).tolist()) == set(range(32)), "32 positions in a sequence, not one"


def test_tiled() -> None:
    """Four runs, one an aligned strip of 128 lines, spread from end to end."""
    assert tiled_lines(4096, 32).text == "512:520,1536:1544,2560:2568,3584:3592 of 4096"
    assert tiled_lines(300, 32).text == "0:10,128:138,256:266 of 300"
    assert tiled_lines(100, 32).text == "0:32 of 100"
    assert tiled_lines(50257, 8).text == "25088:25096 of 50257"
    for total in (33, 129, 513, 50257):
        for s in tiled_lines(total, 32).slices:
            assert s.start % 128 == 0 and s.start // 128 == (s.stop - 1) // 128


def test_long_contractions_get_fewer_lines() -> None:
    assert [n_lines(depth) for depth in (0, 1, 4096, 16384, 32768, 65536, 1 << 20)] == [32, 32, 32, 32, 16, 8, 8]


@pytest.mark.parametrize("total", [5, 33, 300, 4096])
def test_every(total: int) -> None:
    for take in (spaced_lines, tiled_lines):
        lines = take(total, 32)
        for period in (1, 2, 3):
            fewer, places = lines.every(period)
            np.testing.assert_array_equal(fewer.numbers(), lines.numbers()[places])
            expected = sum(math.ceil(len(range(s.start, s.stop, s.step)) / period) for s in lines.slices)
            assert len(fewer) == expected
            assert told(fewer) == fewer.numbers().tolist()
