"""Differences with a cause that has a name: what is said of them, through the audit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from fp8debug.analysis.checkpoint import audit_checkpoint
from fp8debug.analysis.checkpoint.records import CheckPlace

Array = npt.NDArray[Any]
Written = Callable[..., Path]
Tensors = Mapping[str, tuple[str, Array]]
NAME = "layers.0.fc.weight"


def normal(*shape: int, seed: int = 0) -> Array:
    """Weights, as BF16 holds them."""
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def quantised(x: Array, scale: Array) -> Array:
    return (x / scale).clip(-448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)


def said(written: Written, tensors: Tensors, reference: Tensors) -> dict[str, CheckPlace]:
    """What is said of each tensor that differs."""
    audit = audit_checkpoint(written(tensors), [written(reference, folder="reference")])
    return {p.tensor: p for finding in audit.findings if finding.check == "values_differ" for p in finding.places}


def test_codes_without_a_scale_are_told_the_one_that_they_need(written: Written) -> None:
    x = normal(256, 256)
    scale = np.float32(np.abs(x).max() / np.float32(448))
    place = said(written, {NAME: ("F8_E4M3", quantised(x, scale))}, {NAME: ("F32", x)})[NAME]
    assert place.numbers["hypothesis"] == "no_scale" and place.factor is not None
    assert abs(place.factor * scale - 1) < 1e-3
    need = f"its codes need the factor {scale:.4g}: the largest value of the reference / 448."
    assert place.message.endswith(f"No scale is applied to its codes. By the reference, {need}")
    fitted = said(written, {NAME: ("F8_E4M3", quantised(x, np.float32(0.02)))}, {NAME: ("F32", x)})[NAME].message
    assert "need the factor 0.02" in fitted and fitted.endswith("fitted to the reference.")
    other = said(written, {NAME: ("F8_E4M3", quantised(x, scale))}, {NAME: ("F32", normal(256, 256, seed=1))})[NAME]
    assert other.message.endswith("No scale is applied to its codes.")


def test_a_scale_that_does_not_fit_is_named_beside_the_ones_needed(written: Written) -> None:
    x = normal(256, 256) * np.repeat([1, 4], 128).astype(np.float32)
    amax = np.abs(x).reshape(2, 128, 2, 128).max((1, 3))
    codes = quantised(x, np.repeat(np.repeat(amax / np.float32(448), 128, 0), 128, 1))
    tensors = {NAME: ("F8_E4M3", codes), f"{NAME}_scale_inv": ("F32", np.ones((3, 5), np.float32))}
    message = said(written, tensors, {NAME: ("F32", x)})[NAME].message
    assert f"No scale is applied to its codes: {NAME}_scale_inv [3, 5] does not fit them." in message
    span = f"{amax.min() / 448:.3g} to {amax.max() / 448:.3g}"
    assert f"a factor for each block of 128 x 128, {span}: the largest value of the reference there / 448" in message
