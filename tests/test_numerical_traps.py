"""Operations that look right and are off by a bit, or by as much as FP8 itself, so that we do not use them.

Each test shows the trap first, on inputs where it snaps, and then that our numbers are right on the same inputs.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional

from fp8debug.formats import (
    E4M3,
    E5M2,
    E8M0,
    Format,
    decode,
    encode,
    encode_e8m0,
    encode_scalar,
    fake_quantize,
)
from fp8debug.hooks.measure import codecs
from fp8debug.hooks.measure.counting.torch_ops import TorchEngine
from fp8debug.metrics import ErrorSums, cosine, error_sums, gain
from fp8debug.recipes import CurrentScaling, DelayedScaling

FP8 = pytest.mark.parametrize("fmt", [E4M3, E5M2], ids=["E4M3", "E5M2"])


@FP8
def test_a_number_divided_by_a_tensor_is_not_rounded_once(fmt: Format) -> None:
    amax = torch.rand(2000, generator=torch.Generator().manual_seed(3)) * 5 + 1e-3
    ieee = np.float32(fmt.max) / amax.numpy()
    n_wrong = int(((fmt.max / amax).numpy() != ieee).sum())  # torch multiplies with the reciprocal
    assert n_wrong > 400
    current, scales = CurrentScaling(), []
    for value in amax.tolist():
        state = DelayedScaling(amax_history_len=1).new_state((fmt,))
        state.observe(value)
        state.roll(0)
        scales.append((current.scale(value, fmt), state.scale(fmt)))
    np.testing.assert_array_equal(np.array(scales), np.stack([ieee, ieee], axis=1))


def planted() -> torch.Tensor:
    """4.2 M values of E4M3: the first few are large, and a float32 sum then drops the small ones' last bits."""
    x = torch.full((1 << 22,), 0.275)  # 0.28125 once rounded
    x = codecs.fake_quantize(x, E4M3)
    x[:64] = 448.0
    return x


def test_torch_takes_norms_and_cosines_of_large_tensors_in_float32() -> None:
    x = planted()
    wrong = float(torch.nn.functional.cosine_similarity(x, x, dim=0))
    assert abs(wrong - 1) > 1e-4
    energy = 64 * 448.0**2 + (x.numel() - 64) * 0.28125**2
    assert abs(float(x.norm()) ** 2 / energy - 1) > 1e-4

    values, counts = np.array([0.28125, 448.0], np.float32), np.array([x.numel() - 64, 64])
    from_histogram = error_sums(values, counts, np.float32(1), E4M3)
    [from_elements] = TorchEngine().tensor_error_sums(x, [(np.float32(1), E4M3)])
    for sums in (from_histogram, from_elements):
        assert sums.sum_x2 == pytest.approx(energy, rel=1e-12)
        assert_exact_copy(sums)


def assert_exact_copy(sums: ErrorSums) -> None:
    assert sums.sum_err2 == 0
    assert cosine(sums) == pytest.approx(1, abs=1e-14)
    assert gain(sums) == pytest.approx(1, abs=1e-14)


def test_the_logarithm_of_a_bf16_number_is_not_its_exponent() -> None:
    x = torch.arange(1, 0x7F80, dtype=torch.int16).view(torch.bfloat16)
    exact = (torch.frexp(x.float()).exponent - 1).numpy()
    n_wrong = int((x.log2().floor().float().numpy() != exact).sum())
    assert n_wrong > 6000
    expected = np.clip(exact, -127, 127) + 127
    np.testing.assert_array_equal(encode_e8m0(x.float().numpy(), "down"), expected)
    np.testing.assert_array_equal(codecs.encode_e8m0(x, "down").numpy(), expected)


def test_the_float32_logarithm_reaches_the_next_power_of_two_too_early() -> None:
    below = np.float32(2.0**100) - np.float32(2.0**76) * np.arange(1, 45, dtype=np.float32)
    assert (below < np.float32(2.0**100)).all()
    assert (torch.from_numpy(below).log2().floor() == 100).any()
    assert encode_e8m0(below, "down").tolist() == [99 + 127] * below.size
    assert encode_e8m0(below, "up").tolist() == [100 + 127] * below.size


def test_a_cast_of_float64_rounds_twice() -> None:
    above_the_tie = 17 + 1e-9  # 17 is halfway between 16 and 18
    twice = torch.tensor([above_the_tie], dtype=torch.float64).to(torch.float8_e4m3fn)
    assert twice.item() == 16
    assert decode(np.array([encode_scalar(above_the_tie, E4M3)], np.uint8), E4M3) == 18
    with pytest.raises(TypeError, match="got float64"):
        encode(np.array([above_the_tie]), E4M3)
    with pytest.raises(TypeError, match=r"got torch\.float64"):
        codecs.encode(torch.tensor([above_the_tie], dtype=torch.float64), E4M3)


def test_casts_of_torch_saturate_in_one_format_and_not_in_the_other() -> None:
    x = torch.tensor([61440.0, -1e9, math.inf])
    assert x.to(torch.float8_e5m2).float().tolist() == [math.inf, -math.inf, math.inf]
    for fmt in (E4M3, E5M2):
        assert codecs.fake_quantize(x, fmt).tolist() == [fmt.max, -fmt.max, fmt.max]
        assert fake_quantize(x.numpy(), fmt).tolist() == [fmt.max, -fmt.max, fmt.max]


def test_e8m0_of_torch_ignores_the_sign_and_rounds_the_smallest_up() -> None:
    x = torch.tensor([-1.0, 2.0**-127 * 1.25])
    assert x.to(torch.float8_e8m0fnu).view(torch.uint8).tolist() == [127, 1]
    assert codecs.encode(x, E8M0).tolist() == encode(x.numpy(), E8M0).tolist() == [255, 0]
