"""The one pass over the bytes, against ml_dtypes and numpy done the slow way: every dtype, every cut into blocks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from fp8debug.analysis.checkpoint.facts import CodeFacts, LineRanges
from fp8debug.analysis.checkpoint.measuring import measure, scales_only
from fp8debug.analysis.checkpoint.measuring.blocks import BAND_BYTES
from fp8debug.analysis.checkpoint.measuring.lines import Lines
from fp8debug.analysis.checkpoint.measuring.progress import Progress, Stopped
from fp8debug.analysis.checkpoint.measuring.sampling import Spread
from fp8debug.analysis.checkpoint.records import Convention, Quantised, Scale
from fp8debug.analysis.checkpoint.store import open_store
from fp8debug.errors import Fp8DebugError

Array = npt.NDArray[Any]
Written = Callable[..., Path]
RNG = np.random.default_rng(3)
DTYPES = {
    "E4M3": ("F8_E4M3", ml_dtypes.float8_e4m3fn),
    "E5M2": ("F8_E5M2", ml_dtypes.float8_e5m2),
    "E4M3FNUZ": ("F8_E4M3FNUZ", ml_dtypes.float8_e4m3fnuz),
    "E5M2FNUZ": ("F8_E5M2FNUZ", ml_dtypes.float8_e5m2fnuz),
    "E2M1": ("U8", ml_dtypes.float4_e2m1fn),
}
LARGEST = {"E4M3": 448, "E5M2": 57344, "E4M3FNUZ": 240, "E5M2FNUZ": 57344, "E2M1": 6}


def convention(*quantised: Quantised, plain: tuple[str, ...] = (), scales: tuple[Scale, ...] = ()) -> Convention:
    return Convention("any", "any", "", quantised, scales, plain=plain)


def codes_of(written: Written, tensors: dict[str, tuple[str, Array]], one: Quantised) -> CodeFacts:
    with open_store(written(tensors)) as store:
        return measure(store, convention(one), threads=1).codes[one.name]


def lines_of(mask: Array) -> LineRanges:
    """Ranges of the lines in which a mask is true, one by one."""
    found = [line for line, row in enumerate(mask.reshape(-1, mask.shape[-1])) if row.any()]
    ranges: list[tuple[int, int]] = []
    for line in found:
        if ranges and ranges[-1][1] == line - 1:
            ranges[-1] = (ranges[-1][0], line)
        else:
            ranges.append((line, line))
    return LineRanges(len(found), tuple(ranges))


@pytest.mark.parametrize("fmt", DTYPES)
def test_codes_of_every_format(fmt: str, written: Written) -> None:
    dtype, kind = DTYPES[fmt]
    codes = RNG.integers(0, 16 if fmt == "E2M1" else 256, (60, 50)).astype(np.uint8)
    codes[7:50] &= 0x03  # lines without NaN, and without anything large
    values = codes.view(kind).astype(np.float64)
    finite = values[np.isfinite(values)]
    scale = Scale("a.scale", "weight", "F32", (1,), False, "tensor")
    one = Quantised("a.weight", "a", fmt, codes.shape, (scale,))
    facts = codes_of(written, {"a.weight": (dtype, codes), "a.scale": ("F32", np.array([-0.5]))}, one)
    assert (facts.n, facts.n_nan) == (3000, values.size - finite.size)
    assert facts.nan_lines == lines_of(~np.isfinite(values))
    assert (facts.n_zero, facts.largest) == (int((values == 0).sum()), np.abs(finite).max())
    assert facts.n_largest == int((np.abs(finite) == LARGEST[fmt]).sum())
    np.testing.assert_array_equal(facts.histogram, np.bincount(codes.reshape(-1), minlength=facts.histogram.size))
    assert (facts.n_sampled, facts.block_histogram, facts.n_blocks, facts.n_lost) == (3000, None, 1, 0)
    assert facts.rms_codes == pytest.approx(np.sqrt(np.mean(finite**2)))
    assert facts.rms == pytest.approx(0.5 * facts.rms_codes)


def of_blocks(values: Array, block: tuple[int, int]) -> list[list[float]]:
    """Largest finite magnitude of each block, matrix after matrix of a stack."""
    rows = []
    for matrix in values.reshape(-1, *values.shape[-2:]):
        for i in range(0, matrix.shape[0], block[0]):
            parts = [matrix[i : i + block[0], j : j + block[1]] for j in range(0, matrix.shape[1], block[1])]
            rows.append([np.abs(part[np.isfinite(part)]).max(initial=0) for part in parts])
    return rows


@pytest.mark.parametrize(
    ("shape", "layout", "block", "is_transposed"),
    [
        ((300, 200), "block", (128, 128), False),
        ((300, 200), "block", (128, 128), True),
        ((256, 96), "block", (1, 32), False),
        ((130, 100), "block", (1, 32), False),
        ((70, 90), "block", (32, 1), False),
        ((64, 384), "block", (1, 48), False),
        ((40, 600), "block", (16, 300), False),
        ((3, 150, 70), "block", (64, 64), False),
        ((2, 128, 70), "block", (64, 64), False),
        ((5, 20, 30), "block", (128, 128), False),
        ((2, 3, 4, 16), "block", (1, 8), False),
        ((90, 70), "line", None, False),
        ((3, 30, 70), "line", None, False),
        ((90, 70), "column", None, False),
        ((4, 30, 70), "tensor", None, False),
    ],
)
@pytest.mark.parametrize("band_bytes", [BAND_BYTES, 2000])
def test_every_cut_into_blocks(
    shape: tuple[int, ...],
    layout: str,
    block: tuple[int, int] | None,
    is_transposed: bool,
    band_bytes: int,
    written: Written,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("blocks", "codes", "counting"):
        monkeypatch.setattr(f"fp8debug.analysis.checkpoint.measuring.{module}.BAND_BYTES", band_bytes)
    codes = RNG.integers(0, 256, shape).astype(np.uint8)
    codes[..., : shape[-1] // 2] &= 0x8F  # half of it small, so that blocks differ; NaN in the rest
    values = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    lines, length = int(np.prod(shape[:-1])), shape[-1]
    per = {"line": (1, length), "column": (lines, 1), "tensor": (shape[-2], length)}
    size = block or per[layout]
    largest = np.array(of_blocks(values if layout != "column" else values.reshape(1, lines, length), size))
    grid = RNG.random(largest.shape).astype(np.float32)
    stored_shapes = {"line": (*shape[:-1], 1), "column": (length,), "tensor": (shape[0], 1, 1)}
    stored = grid.reshape(stored_shapes.get(layout, (*shape[:-2], -1, largest.shape[1])))
    stored = np.swapaxes(stored, -1, -2) if is_transposed else stored
    scale = Scale("s", "weight", "F32", stored.shape, False, layout, block, is_transposed)
    facts = codes_of(
        written, {"w": ("F8_E4M3", codes), "s": ("F32", stored)}, Quantised("w", "", "E4M3", shape, (scale,))
    )
    table = np.arange(128, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)[:127]
    expected = np.bincount(np.searchsorted(table, largest.reshape(-1)), minlength=128)
    assert facts.block_histogram is not None
    np.testing.assert_array_equal(facts.block_histogram, expected)
    assert (facts.n_blocks, facts.nan_lines) == (largest.size, lines_of(np.isnan(values)))
    rows_of_matrix = -(-(lines if layout == "column" else shape[-2]) // size[0])
    of_line = [(i // shape[-2]) * rows_of_matrix + i % shape[-2] // size[0] for i in range(lines)]
    of_line = [0] * lines if layout == "column" else of_line
    wide = np.repeat(grid, size[1], axis=1)[of_line, :length].astype(np.float64) * values.reshape(lines, length)
    assert facts.rms == pytest.approx(np.sqrt(np.nanmean(wide**2)), rel=1e-6)


def test_packed_codes_and_two_levels_of_which_one_divides(written: Written) -> None:
    packed = RNG.integers(0, 256, (48, 40)).astype(np.uint8)
    packed[:, :8] = 0
    block = RNG.integers(0x20, 0x70, (48, 5)).astype(np.uint8)
    block[3, 0] = block[4, 1] = 0  # over zeros, and over codes that are lost
    scales = (
        Scale("s", "weight", "E4M3", (48, 5), False, "block", (1, 16)),
        Scale("g", "tensor", "F32", (), True, "tensor"),
    )
    one = Quantised("w", "", "E2M1", (48, 80), scales, True)
    tensors = {"w": ("U8", packed), "s": ("F8_E4M3", block), "g": ("F32", np.array(4.0))}
    facts = codes_of(written, tensors, one)
    codes = np.stack([packed & 15, packed >> 4], axis=2).reshape(48, 80)
    values = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    largest = np.abs(values).reshape(48, 5, 16).max(axis=2)
    factors = block.view(ml_dtypes.float8_e4m3fn).astype(np.float64) / 4
    assert (facts.n, facts.n_zero) == (3840, int((values == 0).sum()))
    assert (facts.n_largest, facts.n_lost, facts.n_blocks) == (int((np.abs(values) == 6).sum()), 1, 240)
    np.testing.assert_array_equal(facts.histogram, np.bincount(codes.reshape(-1), minlength=16))
    steps = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert facts.block_histogram is not None
    assert facts.block_histogram.tolist() == [int((largest == step).sum()) for step in steps]
    assert facts.rms == pytest.approx(np.sqrt(np.mean((values.reshape(48, 5, 16) * factors[:, :, None]) ** 2)))


@pytest.mark.parametrize("shape", [(), (0,), (0, 16), (3, 0), (1,), (1000,)])
def test_strange_shapes(shape: tuple[int, ...], written: Written) -> None:
    codes = np.full(shape, 0x38, np.uint8)  # 1.0
    scale = Scale("s", "weight", "F32", (), False, "tensor")
    tensors: dict[str, tuple[str, Array]] = {
        "w": ("F8_E4M3", codes),
        "s": ("F32", np.array(2.0)),
        "b": ("F32", np.full(shape, 3.0)),
    }
    one = Quantised("w", "", "E4M3", shape, (scale,))
    with open_store(written(tensors)) as store:
        facts = measure(store, convention(one, plain=("b",)))
    n = int(np.prod(shape))
    assert (facts.codes["w"].n, facts.codes["w"].n_sampled) == (n, n)
    assert (facts.codes["w"].rms, facts.codes["w"].largest) == ((2.0, 1.0) if n else (0.0, 0.0))
    assert (facts.plain["b"].n, facts.plain["b"].amax, facts.plain["b"].rms) == (
        n,
        3.0 if n else 0.0,
        3.0 if n else 0.0,
    )


def test_the_padding_of_a_swizzled_grid_is_no_scale(written: Written) -> None:
    grid = RNG.integers(1, 100, (130, 5)).astype(np.uint8)
    padded = np.zeros((256, 8), np.uint8)
    padded[:130, :5] = grid
    # Tiles of 128 x 4, in each of which line r, column c is number 16 (r mod 32) + 4 (r div 32) + c.
    stored = padded.reshape(2, 4, 32, 2, 4).transpose(0, 3, 2, 1, 4).reshape(-1)
    codes = RNG.integers(0, 0x7F, (130, 80)).astype(np.uint8)
    scale = Scale("s", "weight", "E4M3", (2048,), False, "block", (1, 16), is_swizzled=True)
    one = Quantised("w", "", "E4M3", (130, 80), (scale,))
    with open_store(written({"w": ("F8_E4M3", codes), "s": ("F8_E4M3", stored)})) as store:
        facts = measure(store, convention(one))
    factors = grid.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    values = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float64) * np.repeat(factors, 16, axis=1)
    assert (facts.scales["s"].n, facts.scales["s"].n_zero, facts.codes["w"].n_blocks) == (650, 0, 650)
    assert facts.codes["w"].rms == pytest.approx(np.sqrt(np.mean(values**2)))


def test_a_scale_that_does_not_fit_leaves_the_magnitude_open(written: Written) -> None:
    scale = Scale("s", "weight", "F32", (3, 3), False, "block", (128, 128))
    codes = np.full((8, 8), 0x38, np.uint8)
    tensors: dict[str, tuple[str, Array]] = {"w": ("F8_E4M3", codes), "s": ("F32", np.ones((3, 3)))}
    facts = codes_of(written, tensors, Quantised("w", "", "E4M3", (8, 8), (scale,)))
    assert np.isnan(facts.rms) and facts.rms_codes == 1 and facts.block_histogram is None


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"])
def test_plain_tensors_of_every_dtype(dtype: str, written: Written) -> None:
    values = RNG.standard_normal((50, 30)) * 3
    if dtype != "F8_E4M3":
        values[10:13, 4], values[40] = np.inf, -np.inf
    values[12, 7] = np.nan
    kinds = {"F8_" + name: kind for name, (_, kind) in DTYPES.items()} | {"BF16": ml_dtypes.bfloat16}
    stored = values.astype(kinds.get(dtype, dtype.lower().replace("f", "float")))
    expected = stored.astype(np.float64)
    with open_store(
        written({"a": (dtype, stored.view(np.uint8).reshape(stored.shape) if "F8" in dtype else values)})
    ) as s:
        facts = measure(s, convention(plain=("a",)), threads=1).plain["a"]
    finite = expected[np.isfinite(expected)]
    assert (facts.n_nan, facts.n_inf) == (int(np.isnan(expected).sum()), int(np.isinf(expected).sum()))
    assert facts.nonfinite_lines == lines_of(~np.isfinite(expected))
    assert facts.amax == pytest.approx(np.abs(finite).max())
    assert facts.rms == pytest.approx(np.sqrt(np.mean(finite**2)), rel=1e-5)


def test_integers_are_left_out_and_unexplained_floats_are_not(written: Written) -> None:
    tensors = {"ids": ("I64", np.arange(4)), "odd": ("F32", np.array([1.0, np.nan]))}
    with open_store(written(tensors)) as store:
        facts = measure(store, convention(plain=("ids",)))
    assert set(facts.plain) == {"odd"} and facts.plain["odd"].n_nan == 1


@pytest.mark.parametrize("encoding", ["F32", "BF16", "E8M0", "E4M3"])
@pytest.mark.parametrize("n", [200, 3000])
def test_scales(encoding: str, n: int, written: Written) -> None:
    kind = {"E8M0": ml_dtypes.float8_e8m0fnu, "E4M3": ml_dtypes.float8_e4m3fn, "BF16": ml_dtypes.bfloat16}.get(encoding)
    values = np.exp2(RNG.integers(-8, 8, n)).astype(np.float32)
    values[3] = np.nan
    if encoding in ("F32", "BF16"):
        values[[5, 6, 7, 8]] = [np.inf, 0, -1.5, 1e-40]
    stored = values.astype(kind) if kind else values
    as_bytes = stored.view(np.uint8) if encoding in ("E8M0", "E4M3") else values
    scale = Scale("s", "input", encoding, (n // 10, 10), False, "block", (1, 1))
    dtype = {"E8M0": "U8", "E4M3": "F8_E4M3"}.get(encoding, encoding)
    with open_store(written({"s": (dtype, as_bytes.reshape(n // 10, 10))})) as store:
        facts = scales_only(store, convention(scales=(scale,))).scales["s"]
    expected = stored.astype(np.float32)
    finite = expected[np.isfinite(expected)]
    assert (facts.n, facts.n_nan, facts.n_inf) == (n, 1, int(np.isinf(expected).sum()))
    assert (facts.n_zero, facts.n_negative) == (int((expected == 0).sum()), int((finite < 0).sum()))
    tiny = (finite != 0) & (np.abs(finite) < 2.0**-126)
    assert (facts.n_subnormal, facts.n_one) == (int(tiny.sum()), int((finite == 1).sum()))
    assert (facts.smallest, facts.largest) == (finite.min(), finite.max())
    assert facts.median == pytest.approx(np.median(finite), rel=0.5)
    assert facts.are_powers_of_two is (encoding in ("E8M0", "E4M3"))
    odd = [divmod(i, 10) for i in np.flatnonzero(~(np.isfinite(expected) & (expected > 0))).tolist()]
    assert list(facts.odd_at) == odd[:8]
    assert (facts.values is None) is (n > 256)


def test_large_tensors_are_sampled_all_over_and_the_same_way_each_time(written: Written) -> None:
    codes = RNG.integers(1, 127, (2016, 512)).astype(np.uint8)
    scale = Scale("s", "weight", "F32", (1,), False, "tensor")
    one = Quantised("w", "", "E4M3", codes.shape, (scale,))
    tensors = {"w": ("F8_E4M3", codes), "s": ("F32", np.array([1.0]))}
    facts, again = codes_of(written, tensors, one), codes_of(written, tensors, one)
    exact = np.sqrt(np.mean(codes.view(ml_dtypes.float8_e4m3fn).astype(np.float64) ** 2))
    assert codes.size / 40 < facts.n_sampled < codes.size / 20
    assert facts.rms == pytest.approx(exact, rel=0.03) and facts.rms == again.rms
    np.testing.assert_array_equal(facts.histogram, again.histogram)
    assert facts.n_largest == np.count_nonzero(codes == 126)


def test_pieces_of_a_large_tensor_are_its_64th_part_in_changing_places() -> None:
    spread = Spread(1 << 30)
    pieces = [spread.piece(256) for _ in range(64)]
    assert sum(piece.stop - piece.start for piece in pieces) == 256
    taken = [piece for piece in pieces if piece.stop > piece.start]
    assert len({piece.start for piece in taken}) == len(taken) == 16
    assert [Spread(60_000).piece(rows) for rows in (7, 256)] == [slice(0, 7), slice(0, 256)]


def test_lines_are_kept_as_ranges_across_bands() -> None:
    lines = Lines(10)
    lines.add(np.array([5, 11, 19, 35]), 0)
    lines.add(np.array([0, 12]), 38)
    lines.add(np.array([0]), 70)
    assert lines.ranges() == LineRanges(5, ((0, 1), (3, 3), (5, 5), (7, 7)))


def test_progress_is_told_and_ends_with_all(written: Written) -> None:
    words: list[str] = []
    with open_store(written({"a": ("F32", np.ones(250_000))})) as store:
        measure(store, convention(plain=("a",)), words.append)
    assert words[-1] == "reading tensors: 100 % of 1.0 MB"
    progress = Progress(12_345_000_000)
    progress.add(5_400_000_000)
    assert progress.words() == "reading tensors: 43 % of 12.3 GB"
    progress.stop()
    with pytest.raises(Stopped):
        progress.add(1)


def test_threads_find_the_same_and_failures_are_raised(written: Written) -> None:
    tensors = {f"w{i}": ("F32", RNG.standard_normal((40, i + 1))) for i in range(20)}
    path = written(tensors)
    with open_store(path) as store:
        found = [measure(store, convention(plain=tuple(tensors)), threads=threads).plain for threads in (1, 3)]
        assert found[0] == found[1] and list(found[1]) == list(found[0])
        (file,) = path.glob("*.safetensors")
        file.write_bytes(file.read_bytes()[:-5000])
        with pytest.raises(Fp8DebugError):
            measure(store, convention(plain=tuple(tensors)), threads=2)
