"""What an audit says with a reference at hand: no more than is so, and no guess against it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from fp8debug.analysis.checkpoint import Audit, audit_checkpoint
from fp8debug.cli.render.checkpoint import render_checkpoint
from fp8debug.cli.render.stream import Looks

Array = npt.NDArray[Any]
Written = Callable[..., Path]
NAME = "layers.0.fc.weight"


def e4m3(x: Array) -> Array:
    return x.clip(-448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)


def against(written: Written, x: Array, codes: Array, scale: float | Array | None, name: str = NAME) -> Audit:
    tensors = {name: ("F8_E4M3", codes)}
    if scale is not None:
        tensors[f"{name}_scale"] = ("F32", np.asarray(scale))
    reference = written({name: ("F32", x)}, folder="reference")
    return audit_checkpoint(written(tensors, folder="checkpoint"), [reference])


def found(audit: Audit) -> dict[str, tuple[str, str]]:
    return {one.check: (one.severity, one.message) for one in audit.findings}


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_a_scale_that_clips_a_few_values_is_a_warning_and_one_that_flushes_is_told_so(written: Written) -> None:
    x = normal(64, 128)
    x[5, 7] = x[40, 9] = 8.6
    severity, message = found(against(written, x, e4m3(x * 448 / 6), 6 / 448))["values_differ"]
    assert severity == "warning" and "are cut off at the code 448" in message
    severity, message = found(against(written, x, e4m3(x * 2**-8), 2.0**8))["values_differ"]
    assert severity == "warning" and "it is too large for these values, which are among the few smallest" in message


def test_magnitudes_are_not_guessed_where_the_reference_has_them(written: Written) -> None:
    keys = normal(256, 64) * 100
    keys[:, 3] *= 8
    audit = against(written, keys, e4m3(keys), None, "layers.0.fc.weight")
    (said,) = found(audit).items()
    assert said[0] == "values_differ" and "are cut off at the code 448" in said[1][1]


def test_what_is_not_explained_is_not_called_a_cause(written: Written) -> None:
    tensors: dict[str, tuple[str, Array]] = {}
    for layer in range(2):
        w = normal(32, 64, seed=layer)
        tensors[f"layers.{layer}.fc.weight"] = ("F8_E4M3", e4m3(w * 448 / np.abs(w).max()))
        tensors[f"layers.{layer}.fc.weight_scale"] = ("F32", np.array(np.abs(w).max() / 448))
    reference = {f"layers.{layer}.fc.weight": ("F32", normal(32, 64, seed=9 + layer)) for layer in range(2)}
    audit = audit_checkpoint(written(tensors), [written(reference, folder="reference")])
    text = render_checkpoint(audit, Looks(), top=10)
    assert "no factor explains it" in text and "% of the error" not in text and "The same cause" not in text
