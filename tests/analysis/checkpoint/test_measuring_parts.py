"""Tensors with very many scales are measured in parts, and the parts together tell what the whole does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from fp8debug.analysis.checkpoint.measuring import codes, measure, parts
from fp8debug.analysis.checkpoint.records import Convention, Quantised, Scale
from fp8debug.analysis.checkpoint.store import open_store

Written = Callable[..., Path]
STACK, MATRIX = (6, 8, 64), (48, 64)
RNG = np.random.default_rng(4)


def scale(
    layout: str,
    shape: tuple[int, ...],
    block: tuple[int, int] | None = None,
    *,
    is_transposed: bool = False,
    is_swizzled: bool = False,
) -> Scale:
    encoding = "E4M3" if is_swizzled else "F32"
    return Scale("s", "weight", encoding, shape, False, layout, block, is_transposed, is_swizzled=is_swizzled)


@pytest.mark.parametrize(
    ("shape", "first", "is_cut"),
    [
        (STACK, scale("block", (6, 8, 4), (1, 16)), True),
        (STACK, scale("block", (6, 2, 2), (4, 32)), True),
        (STACK, scale("block", (6, 2, 3), (3, 32), is_transposed=True), True),
        (STACK, scale("line", (6, 8, 1)), True),
        (STACK, scale("tensor", (6,)), False),
        (STACK, scale("column", (64,)), False),
        (STACK, scale("block", (6, 128, 4), (1, 16), is_swizzled=True), True),
        (MATRIX, scale("block", (48, 4), (1, 16)), True),
        (MATRIX, scale("block", (12, 4), (4, 16)), True),
        (MATRIX, scale("block", (4, 12), (4, 16), is_transposed=True), False),
        (MATRIX, scale("line", (48, 1)), True),
        ((47, 64), scale("block", (12, 4), (4, 16)), False),
    ],
)
@pytest.mark.parametrize("is_packed", [False, True])
def test_parts_tell_what_the_whole_does(
    shape: tuple[int, ...],
    first: Scale,
    is_cut: bool,
    is_packed: bool,
    written: Written,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw = RNG.integers(0, 256, (*shape[:-1], shape[-1] // (1 + is_packed))).astype(np.uint8)
    raw.reshape(-1)[3] = 0x7F
    numbers = RNG.uniform(0.5, 2, first.shape).astype(np.float32)
    numbers.reshape(-1)[:2] = 0
    second = Scale("t", "tensor", "F32", shape[:-2] if len(shape) > 2 else (), True, "tensor")
    path = written(
        {
            "w": ("U8" if is_packed else "F8_E4M3", raw),
            "s": ("F8_E4M3" if first.is_swizzled else "F32", numbers),
            "t": ("F32", RNG.uniform(1, 2, second.shape).astype(np.float32)),
        }
    )
    one = Quantised("w", "w", "E2M1" if is_packed else "E4M3", shape, (first, second), is_packed)
    with open_store(path) as store:
        read = Convention("any", "any", "", (one,))
        whole = measure(store, read).codes["w"]
        for module in (parts, codes):
            monkeypatch.setattr(module, "MANY_SCALES", 12)
        assert (len(list(parts.parts_of(store, one))) > 1) == is_cut
        cut = measure(store, read).codes["w"]
    assert cut.nan_lines == whole.nan_lines
    assert (cut.block_histogram is None) == (whole.block_histogram is None)
    for name in {field.name for field in fields(whole) if getattr(whole, field.name) is not None} - {"nan_lines"}:
        np.testing.assert_allclose(getattr(cut, name), getattr(whole, name), rtol=1e-6, err_msg=name)
