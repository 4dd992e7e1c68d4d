"""Tensors of which a part is looked at, stacks, lines in another order, and weights in high precision."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from fp8debug.analysis.checkpoint.records import Stored
from fp8debug.analysis.checkpoint.reference.hypotheses import explain
from fp8debug.analysis.checkpoint.reference.hypotheses.gathering import gather
from fp8debug.analysis.checkpoint.reference.lines import PlainLines
from fp8debug.analysis.checkpoint.reference.pair import Pair

Array = npt.NDArray[Any]
PairOf = Callable[..., Pair]
E4M3 = ml_dtypes.float8_e4m3fn


def by_line(x: Array) -> tuple[Array, Array]:
    scales = (np.abs(x).max(1, keepdims=True) / 448).astype(np.float32)
    return np.clip(x / scales, -448, 448).astype(E4M3).view(np.uint8), scales


def normal(*shape: int, seed: int = 0) -> Array:
    x = np.random.default_rng(seed).standard_normal(shape, np.float32) * np.float32(0.02)
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def test_of_a_large_tensor_runs_of_lines_are_taken_and_those_asked_for(pair_of: PairOf) -> None:
    x = normal(3000, 64)
    codes, scales = by_line(x)
    evidence = gather(pair_of(x, codes, scales), near=[2988], most_elements=1 << 14)
    assert (1 << 13) < evidence.n < (1 << 15) and not evidence.is_whole
    np.testing.assert_array_equal(evidence.x, x[evidence.lines])
    np.testing.assert_array_equal(evidence.values, (codes.view(E4M3).astype(np.float32) * scales)[evidence.lines])
    assert set(range(2988, 3000)) <= set(evidence.lines.tolist())
    np.testing.assert_array_equal(evidence.cell_amax[:, 0], np.abs(x).max(1)[evidence.lines])


def test_largest_values_are_those_of_whole_blocks_though_few_of_their_lines_are_taken(pair_of: PairOf) -> None:
    x = normal(512, 256, seed=1)
    grid = np.abs(x).reshape(4, 128, 2, 128).max((1, 3)) / np.float32(448)
    evidence = gather(pair_of(x, np.zeros(x.shape, np.uint8), grid, block=(128, 128)), most_elements=1 << 14)
    assert len(evidence.lines) == 64
    blocks = evidence.cells.numbers
    np.testing.assert_array_equal(evidence.cell_amax / np.float32(448), grid[blocks])


def test_one_expert_of_a_stack(pair_of: PairOf) -> None:
    x = normal(3, 40, 64, seed=2) * np.array([1, 2, 0.4], np.float32)[:, None, None]
    scales = (np.abs(x).max((1, 2)) / np.float32(448)).astype(np.float32)
    codes = np.clip(x / scales[:, None, None], -448, 448).astype(E4M3).view(np.uint8)
    (off,) = explain(pair_of(x, codes, scales * np.array([1, 1, 4]), layout="tensor"))
    assert off.name == "few_blocks"
    assert off.factor == pytest.approx(4, rel=0.01)
    (rolled,) = explain(pair_of(x, codes, np.roll(scales, 1), layout="tensor"))
    assert rolled.name == "permuted_grid"


def test_parts_that_were_joined_under_the_largest_of_their_scales(pair_of: PairOf) -> None:
    parts = [normal(lines, 128, seed=lines) * np.float32(size) for lines, size in ((64, 1), (24, 3), (40, 2))]
    scales = [np.abs(part).max() / np.float32(448) for part in parts]
    codes = [
        np.clip(part / scale, -448, 448).astype(E4M3).view(np.uint8) for part, scale in zip(parts, scales, strict=True)
    ]
    (found,) = explain(pair_of(np.concatenate(parts), np.concatenate(codes), np.array([max(scales)])))
    assert found.name == "joined_parts"
    told = re.findall(r"([\d.]+) in lines (\d+) to (\d+)", found.message)
    assert [(first, last) for _, first, last in told] == [("0", "63"), ("64", "87"), ("88", "127")]
    for (gain, _, _), scale in zip(told, scales, strict=True):
        assert float(gain) == pytest.approx(max(scales) / scale, rel=0.005)


def test_scales_that_are_shifted(pair_of: PairOf) -> None:
    sizes = np.exp(np.random.default_rng(6).standard_normal((96, 1))).astype(np.float32)
    x = normal(96, 128, seed=6) * sizes
    codes, scales = by_line(x)
    (found,) = explain(pair_of(x, codes, np.roll(scales, -24, 0)))
    assert (found.name, found.message) == (
        "permuted_grid", "the rows of layers.1.q_proj.weight_scale are shifted by 24 of 96"
    )  # fmt: skip


def test_lines_in_another_order(pair_of: PairOf) -> None:
    x = normal(96, 128, seed=3)
    codes, scales = by_line(x)
    (halves,) = explain(pair_of(x, np.roll(codes, 48, 0), np.roll(scales, 48, 0)))
    assert (halves.name, halves.factor) == ("line_order", None)
    assert halves.message.startswith("lines are shifted by 48: line 0 is the reference's line 48")
    order = np.random.default_rng(4).permutation(96)
    (mixed,) = explain(pair_of(x, codes[order], scales[order]))
    assert mixed.name == "line_order" and mixed.explains > 0.99


def test_columns_with_factors_of_their_own_and_in_another_order(pair_of: PairOf) -> None:
    x, rng = normal(96, 128, seed=7), np.random.default_rng(7)
    folded = np.exp(rng.uniform(-1, 1, (1, 128))).astype(np.float32)
    (smoothed,) = explain(pair_of(x, *by_line(x * folded)))
    assert (smoothed.name, smoothed.factor) == ("column_factors", None) and smoothed.explains > 0.99
    order = rng.permutation(128)
    (mixed,) = explain(pair_of(x, *by_line(x[:, order])))
    assert mixed.name == "column_order"
    first = int(np.flatnonzero(order != np.arange(128))[0])
    assert mixed.message.endswith(f"column {first} is the reference's column {order[first]}")


def test_weights_in_high_precision(pair_of: PairOf) -> None:
    x = normal(96, 96, seed=5)
    codes, scales = by_line(x)
    base = pair_of(x, codes, scales)

    def of(values: Array) -> Pair:
        store = type(base.store)()
        store.add("a.weight", "F32", values.astype(np.float32))  # type: ignore[attr-defined]
        stored = Stored("a.weight", "F32", x.shape, "memory")
        assert isinstance(PlainLines(store, stored).values(0, 1), np.ndarray)
        return Pair(store, stored, base.reference_store, base.reference, base.reference_lines)

    back = codes.view(E4M3).astype(np.float32) * scales
    (turned_back,) = explain(of(back))
    assert turned_back.name == "rounded_once"
    assert turned_back.message.startswith("weights were rounded to E4M3 with the largest value of each line / 448")
    assert [one.name for one in explain(of(x * 2))] == ["power_of_two"]
    assert [one.name for one in explain(of(x.T))] == ["transposed"]
    assert [one.name for one in explain(of(x * 448 / 240))] == ["range_mismatch"]
    assert explain(of(x)) == ()
