"""The torch codecs, bit for bit, against the numpy ones and against ml_dtypes and gfloat."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fp8debug import formats
from fp8debug.formats import E2M1, E4M3, E5M2, E8M0, ELEMENT_FORMATS, FORMATS, Format, Rounding
from fp8debug.hooks.measure import codecs

ALL = pytest.mark.parametrize("fmt", FORMATS.values(), ids=list(FORMATS))
ELEMENTS = pytest.mark.parametrize("fmt", ELEMENT_FORMATS.values(), ids=list(ELEMENT_FORMATS))
SATURATE = pytest.mark.parametrize("saturate", [True, False], ids=["saturating", "nonsaturating"])
FP8 = {"E4M3": torch.float8_e4m3fn, "E5M2": torch.float8_e5m2}
FP8 |= {"E4M3FNUZ": torch.float8_e4m3fnuz, "E5M2FNUZ": torch.float8_e5m2fnuz}


def patterns(oracles: ModuleType, fmt: Format) -> list[npt.NDArray[np.float32]]:
    return [oracles.every_bf16(), oracles.every_fp16(), oracles.random_fp32(1 << 18), oracles.around_values(fmt)]


def codes_of(x: npt.NDArray[np.float32], fmt: Format, saturate: bool = True) -> npt.NDArray[np.uint8]:
    found: npt.NDArray[np.uint8] = codecs.encode(torch.from_numpy(x), fmt, saturate=saturate).view(torch.uint8).numpy()
    return found


def assert_same_bits(got: torch.Tensor, expected: npt.NDArray[np.float32]) -> None:
    assert got.dtype == torch.float32
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(got.numpy()), nan)
    np.testing.assert_array_equal(got.numpy()[~nan].view(np.uint32), expected[~nan].view(np.uint32))


@SATURATE
@ALL
def test_codes_equal_the_numpy_codec(cast_oracles: ModuleType, fmt: Format, saturate: bool) -> None:
    for x in patterns(cast_oracles, fmt):
        np.testing.assert_array_equal(codes_of(x, fmt, saturate), formats.encode(x, fmt, saturate=saturate))


@SATURATE
@ELEMENTS
def test_codes_equal_ml_dtypes_and_gfloat(cast_oracles: ModuleType, fmt: Format, saturate: bool) -> None:
    for x in patterns(cast_oracles, fmt):
        expected, agreed = cast_oracles.agreed_codes(x, fmt, saturate)
        assert agreed.all()
        np.testing.assert_array_equal(codes_of(x, fmt, saturate), expected)


@SATURATE
def test_e8m0_codes_are_the_exact_exponents(cast_oracles: ModuleType, saturate: bool) -> None:
    for x in patterns(cast_oracles, E8M0):
        np.testing.assert_array_equal(codes_of(x, E8M0, saturate), cast_oracles.exact_e8m0_codes(x, saturate))


@SATURATE
@pytest.mark.parametrize("rounding", ["nearest", "up", "down"])
def test_e8m0_roundings_equal_the_numpy_ones(cast_oracles: ModuleType, rounding: Rounding, saturate: bool) -> None:
    for x in patterns(cast_oracles, E8M0):
        codes = codecs.encode_e8m0(torch.from_numpy(x), rounding, saturate=saturate).numpy()
        np.testing.assert_array_equal(codes, formats.encode_e8m0(x, rounding, saturate=saturate))


@ALL
def test_values_equal_the_numpy_twin_to_the_bit(cast_oracles: ModuleType, fmt: Format) -> None:
    for x in patterns(cast_oracles, fmt):
        t = torch.from_numpy(x)
        assert_same_bits(codecs.fake_quantize(t, fmt), formats.fake_quantize(x, fmt))
        draws = np.random.default_rng(4).random(x.size)
        rounded = codecs.round_by_draws(t, fmt, torch.from_numpy(draws))
        assert_same_bits(rounded, formats.round_by_draws(x, fmt, draws))
        np.testing.assert_array_equal(codecs.overflows(t, fmt).numpy(), formats.overflows(x, fmt))


@ALL
def test_encode_has_the_dtype_of_the_format_and_decode_reads_it(fmt: Format) -> None:
    codes = np.arange(1 << fmt.bits, dtype=np.uint8)
    encoded = codecs.encode(torch.ones(3), fmt)
    assert encoded.dtype == FP8.get(fmt.name, torch.uint8)
    for given in (torch.from_numpy(codes), torch.from_numpy(codes).view(encoded.dtype)):
        assert_same_bits(codecs.decode(given, fmt), formats.decode(codes, fmt))


def test_casts_are_compiled_in_one_piece() -> None:
    def casts(t: torch.Tensor) -> list[torch.Tensor]:
        rounded = [codecs.fake_quantize(t, fmt) for fmt in FORMATS.values()]
        return [*rounded, *(codecs.encode(t, fmt).view(torch.uint8) for fmt in FORMATS.values())]

    t = torch.randn(64, generator=torch.Generator().manual_seed(1)).abs()
    compiled = torch.compile(casts, fullgraph=True, backend="eager")
    for got, expected in zip(compiled(t), casts(t), strict=True):
        assert torch.equal(got, expected)


@ALL
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_half_precision_is_cast_from_its_exact_value(fmt: Format, dtype: torch.dtype) -> None:
    halves = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)
    x = halves.float().numpy()
    np.testing.assert_array_equal(codecs.encode(halves, fmt).view(torch.uint8).numpy(), formats.encode(x, fmt))
    assert_same_bits(codecs.fake_quantize(halves, fmt), formats.fake_quantize(x, fmt))


@ALL
def test_shape_and_stride_are_free_and_gradients_are_not_followed(fmt: Format) -> None:
    x = torch.randn(4, 6, requires_grad=True)
    generator = torch.Generator()
    for view in (x, x.T, x[::2, 1::3], x[0, 0], x[:0]):
        got = codecs.fake_quantize(view, fmt)
        assert got.shape == view.shape and not got.requires_grad
        np.testing.assert_array_equal(got.numpy(), formats.fake_quantize(view.detach().numpy(), fmt))
        drawn = codecs.stochastic_fake_quantize(view, fmt, generator)
        assert drawn.shape == view.shape and not drawn.requires_grad and drawn.dtype == torch.float32
        assert codecs.encode(view, fmt).shape == view.shape


@ELEMENTS
def test_stochastic_mean_is_the_value_and_the_global_generator_is_left_alone(fmt: Format) -> None:
    x = torch.tensor([0.3, 2.7, 9.1, -9.1]) * fmt.min_subnormal
    n = 40_000
    state = torch.get_rng_state()
    repeated = x[:, None].expand(4, n)
    got = codecs.stochastic_fake_quantize(repeated, fmt, torch.Generator().manual_seed(1)).double()
    again = codecs.stochastic_fake_quantize(repeated, fmt, torch.Generator().manual_seed(1)).double()
    assert torch.equal(got, again)
    assert torch.equal(torch.get_rng_state(), state)
    assert ((got.mean(1) - x).abs() <= 4.5 * got.std(1) / math.sqrt(n)).all()
    assert (got.std(1) > 0).all()


@pytest.mark.parametrize("fmt", [E4M3, E2M1, E8M0], ids=lambda fmt: fmt.name)
def test_float64_is_refused_because_it_would_round_twice(fmt: Format) -> None:
    wide = torch.zeros(1, dtype=torch.float64)
    for cast in (codecs.encode, codecs.fake_quantize):
        with pytest.raises(TypeError, match=r"got torch\.float64"):
            cast(wide, fmt)
    with pytest.raises(TypeError, match=r"got torch\.float64"):
        codecs.stochastic_fake_quantize(wide, fmt, torch.Generator())


def test_torch_itself_does_not_saturate_e5m2() -> None:
    x = torch.tensor([61440.0, -1e9, math.inf])
    assert x.to(torch.float8_e5m2).float().tolist() == [math.inf, -math.inf, math.inf]
    assert codecs.fake_quantize(x, E5M2).tolist() == [57344.0, -57344.0, 57344.0]


class Casts(TorchDispatchMode):
    """Keeps the argument of every cast to a type of fewer than 16 bits, with the type."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[tuple[torch.Tensor, torch.dtype]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        dtype = (kwargs or {}).get("dtype")
        if (
            func is torch.ops.aten._to_copy.default
            and dtype is not None
            and "float" in str(dtype)
            and dtype.itemsize < 2
        ):
            self.seen.append((args[0], dtype))
        return func(*args, **(kwargs or {}))


@SATURATE
@ALL
def test_torch_never_decides_about_overflow_and_never_sees_another_cast(fmt: Format, saturate: bool) -> None:
    # Above the largest value the result of torch's cast depends on version, device and format.
    x = torch.tensor([1.0, 449.0, 1e9, math.inf, -math.inf, math.nan])
    with Casts() as casts:
        codecs.encode(x, fmt, saturate=saturate)
        codecs.fake_quantize(x, fmt)
    assert {dtype for _, dtype in casts.seen} == ({FP8[fmt.name]} if fmt.name in FP8 else set())
    for argument, _ in casts.seen:
        assert argument.dtype == torch.float32
        assert argument.nan_to_num(0.0).abs().max() <= fmt.max
