"""Which lines are sampled, and what is copied of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fp8debug.hooks.measure.strips import Sample, as_matrix, sample_of

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def ranges(sample: Sample) -> list[tuple[int, int]]:
    """First line and the one after the last, of each strip."""
    return [(start, min(start + 128, sample.n_lines)) for start in sample.starts]


def test_small_tensors_are_taken_whole() -> None:
    sample = sample_of(torch.empty(300, 40), "row", budget=12_000)
    assert (ranges(sample), sample.text, sample.is_whole) == ([(0, 128), (128, 256), (256, 300)], "all", True)
    assert (sample.n_total, sample.n_sampled_lines) == (12_000, 300)


def test_large_tensors_are_sampled_evenly_in_whole_strips() -> None:
    # 16 strips of 128 rows, of which 4 fit: the middle one of each quarter.
    rows = sample_of(torch.empty(2048, 64), "row", budget=4 * 128 * 64)
    assert ranges(rows) == [(256, 384), (768, 896), (1280, 1408), (1792, 1920)]
    assert rows.text == "lines 256:384,768:896,1280:1408,1792:1920"
    assert (rows.n_lines, rows.length, rows.n_total, rows.n_sampled_lines) == (2048, 64, 2048 * 64, 512)
    columns = sample_of(torch.empty(64, 2048), "column", budget=4 * 128 * 64)
    assert (columns.text, columns.n_lines, columns.length) == (rows.text, 2048, 64)


def test_there_is_always_a_strip_and_the_last_one_may_be_short() -> None:
    assert sample_of(torch.empty(130, 4096), "row", budget=1).text == "lines 128:130"
    assert sample_of(torch.empty(130, 4096), "row", budget=1).n_sampled_lines == 2
    assert sample_of(torch.empty(100, 4096), "row", budget=1).text == "all"


@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4)])
def test_any_shape_is_a_matrix(shape: tuple[int, ...]) -> None:
    t = torch.ones(shape)
    expected = {(): (1, 1), (5,): (1, 5), (2, 3, 4): (6, 4)}[shape]
    assert tuple(as_matrix(t.requires_grad_()).shape) == expected


@pytest.mark.parametrize(
    ("dtype", "gemm_dtype", "rounded"),
    [(BF16, BF16, BF16), (FP16, FP16, FP16), (FP32, BF16, BF16), (FP32, FP16, FP16), (FP32, FP32, FP32),
     (torch.float64, torch.float64, FP32)],
)  # fmt: skip
@pytest.mark.parametrize("orientation", ["row", "column"])
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "strided"])
def test_strips_hold_what_the_gemm_reads(
    dtype: torch.dtype, gemm_dtype: torch.dtype, rounded: torch.dtype, orientation: str, layout: str
) -> None:
    t = torch.randn(300, 150, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    if layout == "transposed":
        t = t.t().contiguous().t()
    elif layout == "strided":
        t = torch.stack([t, -t], dim=2)[..., 0]
    expected = t.to(rounded).to(FP32).numpy()
    expected = expected if orientation == "row" else expected.T
    sample = sample_of(t, orientation, budget=1 << 20)
    seen = 0
    for strip in sample.strips(t, gemm_dtype):
        assert strip.first == seen and strip.read is strip.x
        seen += len(strip.x)
        assert strip.x.flags.c_contiguous and strip.x.shape[1] == -(-sample.length // 128) * 128
        np.testing.assert_array_equal(strip.x[:, : strip.length], expected[strip.first : seen])
        assert not strip.x[:, strip.length :].any()
    assert seen == sample.n_lines
