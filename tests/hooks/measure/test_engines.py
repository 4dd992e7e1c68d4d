"""Both engines against a count in plain numpy, on every dtype, layout and kind of tensor they may meet."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fp8debug.errors import UsageError
from fp8debug.hooks.measure import Counted, Engine, Health, UnsupportedDtype, load_engine

BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
ROUTES = [(BF16, BF16), (FP16, FP16), (FP32, BF16), (FP32, FP16), (FP32, FP32), (FP64, FP64), *((f, f) for f in FP8)]
SIZES = (0, 1, 3, 7, 1023, 4097)
ENGINES = {name: load_engine(name) for name in ("numba", "torch")}


def seeded(kind: str, n: int, seed: int) -> torch.Tensor:
    """FP32 vector of one kind of tensor."""
    g = torch.Generator().manual_seed(seed)
    normal = torch.randn(n, generator=g)
    uniform = torch.rand(n, generator=g)
    match kind:
        case "normal":
            return normal
        case "log-normal":
            return torch.exp(4 * normal) * torch.sign(uniform - 0.5)
        case "heavy-tailed":
            return torch.tan(torch.pi * (uniform - 0.5)) ** 3
        case "constant":
            return torch.full((n,), -1.5)
        case "sparse":
            return normal * (uniform < 0.1)
        case "subnormal":  # of BF16 and FP32, with values that round to zero
            return normal * 2.0**-132 * (uniform < 0.9)
        case "fp16 subnormal":
            return normal * 2.0**-23
        case "zeros":
            return torch.copysign(torch.zeros(n), normal)
        case "overflowing":  # rounds to infinity in FP16, and near the end of FP32 in BF16
            return torch.where(uniform < 0.5, torch.sign(normal) * torch.finfo(FP32).max, normal * 65504)
        case "nonfinite":
            specials = torch.tensor([torch.nan, -torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 3.0])
            choice = torch.randint(0, 7, (n,), generator=g)
            return torch.where(uniform < 0.5, specials[choice], normal)
        case "all nan":
            return torch.full((n,), torch.nan)
    raise AssertionError(kind)


KINDS: tuple[str, ...] = (
    *("normal", "log-normal", "heavy-tailed", "constant", "sparse", "zeros"),
    *("subnormal", "fp16 subnormal", "overflowing", "nonfinite", "all nan"),
)
BF16_MAX = 255 / 128 * 2.0**127


def as_numbers(t: torch.Tensor) -> npt.NDArray[np.float64]:
    """Elements in logical order as float64, by way of ml_dtypes rather than torch."""
    raw = t.clone(memory_format=torch.contiguous_format).reshape(-1)
    if t.dtype in (FP32, FP64):
        with np.errstate(invalid="ignore"):  # a signalling NaN stays a NaN
            return raw.numpy().astype(np.float64)
    twin = np.dtype(getattr(ml_dtypes, str(t.dtype)[6:])) if t.dtype is not FP16 else np.dtype(np.float16)
    codes = raw.view(torch.uint8 if t.element_size() == 1 else torch.int16).numpy().view(twin)
    with np.errstate(invalid="ignore"):
        return codes.astype(np.float64)


def rounded(x: npt.NDArray[np.float64], dtype: torch.dtype) -> npt.NDArray[np.float64]:
    """FP32 numbers rounded to nearest even in BF16, FP16 or FP32."""
    twin = {BF16: np.dtype(ml_dtypes.bfloat16), FP16: np.dtype(np.float16), FP32: np.dtype(np.float32)}[dtype]
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(np.float32).astype(twin).astype(np.float64)


def expected_health(x: npt.NDArray[np.float64]) -> Health:
    """Health of these numbers."""
    magnitudes = np.abs(x[np.isfinite(x)])
    nonzero = magnitudes[magnitudes != 0]
    return Health(
        n=x.size,
        n_zero=int(np.sum(x == 0)),
        n_neg_zero=int(np.sum((x == 0) & np.signbit(x))),
        n_nan=int(np.sum(np.isnan(x))),
        n_posinf=int(np.sum(x == np.inf)),
        n_neginf=int(np.sum(x == -np.inf)),
        amin=float(nonzero.min()) if nonzero.size else None,
        amax=float(magnitudes.max()) if magnitudes.size else 0.0,
    )


def expected_histogram(x: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Distinct finite numbers in code order: the positive ones ascending, then the negative ones by magnitude."""
    finite = x[np.isfinite(x)]
    runs = [np.unique(np.abs(finite[np.signbit(finite) == sign]), return_counts=True) for sign in (False, True)]
    return np.concatenate([runs[0][0], -runs[1][0]]), np.concatenate([runs[0][1], runs[1][1]])


def expected_checksum(t: torch.Tensor) -> int:
    """The definition, a word at a time."""
    data = t.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).numpy().tobytes()
    s1 = s2 = 0
    for start in range(0, len(data), 8):
        s1 = (s1 + int.from_bytes(data[start : start + 8], "little")) % 2**64
        s2 = (s2 + s1) % 2**64
    return s2 ^ (s1 << 32 | s1 >> 32) % 2**64


def check(engine: Engine, t: torch.Tensor, gemm_dtype: torch.dtype) -> Counted:
    """Compare everything an engine says about a tensor with the plain count."""
    x = as_numbers(t)
    seen, values = x, x
    approx = None
    if t.dtype in (FP32, FP64):
        approx = "bf16" if gemm_dtype not in (BF16, FP16) else None
        seen = rounded(x, gemm_dtype if approx is None else FP32)
        values = seen
        if approx:
            values = rounded(x, BF16)
            lost = np.isinf(values) & np.isfinite(seen)
            values[lost] = np.copysign(BF16_MAX, values[lost])
    health = expected_health(seen)
    counted = engine.count(t, gemm_dtype)
    assert counted.health == health
    assert counted.approx == approx
    assert counted.checksum == expected_checksum(t)
    distinct, counts = expected_histogram(values)
    assert (counted.values.dtype.name, counted.counts.dtype.name) == ("float32", "int64")
    np.testing.assert_array_equal(counted.values, distinct)
    np.testing.assert_array_equal(np.signbit(counted.values), np.signbit(distinct))
    np.testing.assert_array_equal(counted.counts, counts)
    check_health(engine, engine.health(t, gemm_dtype), health)
    return counted


def check_health(engine: Engine, got: Health, expected: Health) -> None:
    """All fields must agree; the torch engine may leave some out."""
    if engine.name == "torch" and got.n_zero is None:
        assert (got.amin, got.n_neg_zero) == (None, None)
        assert (got.n, got.amax) == (expected.n, expected.amax)
        assert (got.n_nan, got.n_posinf, got.n_neginf) == (0, 0, 0) and not expected.has_nonfinite
    else:
        assert got == expected


@pytest.fixture(params=["numba", "torch"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each engine in turn."""
    return ENGINES[request.param]


@pytest.mark.parametrize("dtype, gemm_dtype", ROUTES, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_dtype_and_size_is_counted_exactly(
    engine: Engine, kind: str, dtype: torch.dtype, gemm_dtype: torch.dtype
) -> None:
    for n in SIZES:
        check(engine, seeded(kind, n, seed=n).to(dtype), gemm_dtype)


@settings(max_examples=60, deadline=None)
@given(
    data=st.binary(max_size=64).map(lambda b: b[: len(b) // 8 * 8]),
    route=st.sampled_from(ROUTES),
    engine_name=st.sampled_from(("numba", "torch")),
)
@example(data=bytes.fromhex("ffff7f7f00807f7f"), route=(FP32, FP32), engine_name="numba")  # around BF16 overflow
@example(data=bytes.fromhex("0080000001800000"), route=(FP32, BF16), engine_name="numba")  # around BF16 underflow
@example(data=bytes.fromhex("0100807f0100807f"), route=(FP32, BF16), engine_name="numba")  # NaN with a low payload
@example(data=bytes.fromhex("ffffff7fffffffff"), route=(FP32, BF16), engine_name="numba")  # NaN with a full payload
@example(data=bytes.fromhex("00000033010000b3"), route=(FP32, FP16), engine_name="numba")  # around FP16 underflow
@example(data=bytes.fromhex("00f07f47ffef7fc7"), route=(FP32, FP16), engine_name="numba")  # around FP16 overflow
def test_arbitrary_bits_are_counted_exactly(
    data: bytes, route: tuple[torch.dtype, torch.dtype], engine_name: str
) -> None:
    raw = torch.tensor(list(data), dtype=torch.uint8)
    check(ENGINES[engine_name], raw.view(route[0]), route[1])


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    n=st.integers(0, 5000),
    seed=st.integers(0, 2**32 - 1),
    route=st.sampled_from(ROUTES),
    engine_name=st.sampled_from(("numba", "torch")),
)
def test_random_tensors_are_counted_exactly(
    kind: str, n: int, seed: int, route: tuple[torch.dtype, torch.dtype], engine_name: str
) -> None:
    check(ENGINES[engine_name], seeded(kind, n, seed).to(route[0]), route[1])


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda t: t.t(),
    "every other row": lambda t: t[::2],
    "every third column": lambda t: t[:, ::3],
    "misaligned": lambda t: t.reshape(-1)[1:],
    "row of a misaligned matrix": lambda t: t[1],
    "expanded": lambda t: t[:, :1].expand(-1, 33),
    "one number expanded": lambda t: t[0, 0].expand(9, 7),
    "permuted": lambda t: t.reshape(3, 7, -1).permute(2, 0, 1),
    "scalar": lambda t: t[2, 3],
    "one number with a stride of 0": lambda t: t[2, 3].expand(1),
    "nothing with a stride of 0": lambda t: t[2, 3].expand(0),
    "no rows": lambda t: t[:0],
    "no columns": lambda t: t[:, :0],
}


@pytest.mark.parametrize("dtype, gemm_dtype", ROUTES, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_changes_nothing_but_the_order(
    engine: Engine, layout: str, dtype: torch.dtype, gemm_dtype: torch.dtype
) -> None:
    matrix = seeded("nonfinite", 21 * 33, seed=5).reshape(21, 33).to(dtype)
    check(engine, LAYOUTS[layout](matrix), gemm_dtype)


@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_long_tensors_cross_every_internal_border(engine: Engine, dtype: torch.dtype) -> None:
    n = (1 << 20) + 4099
    for kind in ("log-normal", "sparse"):
        got = engine.count(seeded(kind, n, seed=1).to(dtype), BF16)
        values, counts = expected_histogram(rounded(seeded(kind, n, seed=1).numpy().astype(np.float64), BF16))
        np.testing.assert_array_equal(got.values, values)
        np.testing.assert_array_equal(got.counts, counts)
        assert got.health.n == n


def test_the_whole_bf16_range_has_one_of_each(engine: Engine) -> None:
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(BF16)
    counted = engine.count(every, BF16)
    assert counted.values.size == 2 * 0x7F80
    assert (counted.counts == 1).all()
    assert counted.health.n_nan == 2 * 127


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64, torch.uint8])
def test_what_is_no_float_is_refused(engine: Engine, dtype: torch.dtype) -> None:
    for method in (engine.health, engine.count):
        with pytest.raises(UnsupportedDtype, match="cannot be measured"):
            method(torch.zeros(3, dtype=dtype), BF16)


def test_an_unknown_engine_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"'nunba'.*numba, torch.*did you mean 'numba'"):
        load_engine("nunba")


def test_numba_is_taken_where_it_is_installed_and_asked_for_where_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_engine().name == "numba"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert load_engine().name == "torch"
    with pytest.raises(UsageError, match="not installed: pip install"):
        load_engine("numba")
