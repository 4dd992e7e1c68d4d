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


def quantised(x: Array, scale: npt.ArrayLike) -> Array:
    return (x / np.asarray(scale, np.float32)).clip(-448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)


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


def test_a_plain_tensor_has_no_scale_that_could_be_wrong(written: Written) -> None:
    norm, matrix = 1 + 0.1 * normal(256), normal(256, 256)
    reference = {"norm.weight": ("BF16", norm), "fc.weight": ("BF16", matrix)}

    def cause(name: str, ours: Array) -> CheckPlace:
        return said(written, reference | {name: ("BF16", ours)}, reference)[name]

    times = cause("fc.weight", matrix * 1.37)
    assert times.numbers["hypothesis"] == "plain_factor" and times.factor is not None
    assert abs(times.factor / 1.37 - 1) < 1e-3 and "it has no scale" in times.message
    for by, words in ((-1, "smaller by 1: this is w, the reference 1 + w"), (1, "larger by 1: this is 1 + w")):
        place = cause("norm.weight", norm.astype(ml_dtypes.bfloat16).astype(np.float32) + by)
        assert (place.numbers["hypothesis"], place.factor) == ("one_added", None) and words in place.message
    order = cause("norm.weight", norm[::-1].copy())
    assert order.numbers["hypothesis"] == "element_order" and order.factor is None
    assert cause("fc.weight", matrix.T.copy()).numbers["hypothesis"] == "transposed"
    assert cause("fc.weight", normal(256, 256, seed=1)).numbers["hypothesis"] == "different_weights"


def test_rows_of_the_other_rotary_layout(written: Written) -> None:
    x, bias = normal(256, 96), normal(256, seed=1)
    halves = np.arange(256).reshape(4, 32, 2).swapaxes(1, 2).reshape(-1)  # 0, 2, ..., 62, 1, 3, ..., 63 of each 64
    name = "layers.0.self_attn.q_proj"
    reference = {f"{name}.weight": ("F32", x), f"{name}.bias": ("F32", bias)}
    for order, shown in ((halves, "0, 2, ..., 1, 3, ..."), (np.argsort(halves), "0, 32, 1, 33, ...")):
        scale = np.abs(x).max(1, keepdims=True) / np.float32(448)
        tensors = {
            f"{name}.weight": ("F8_E4M3", quantised(x, scale)[order]),
            f"{name}.weight_scale": ("F32", scale[order]),
            f"{name}.bias": ("F32", bias[order]),
        }
        places = said(written, tensors, reference)
        assert {place.numbers["hypothesis"] for place in places.values()} == {"rotary_order"} and len(places) == 2
        assert f"rows are the reference's in the order {shown} within each head of 64" in (
            places[f"{name}.weight"].message
        )
    shuffled = np.random.default_rng(0).permutation(256)
    tensors = {f"{name}.weight": ("F32", x[shuffled]), f"{name}.bias": ("F32", bias)}
    (place,) = said(written, tensors, reference).values()
    assert place.numbers["hypothesis"] == "line_order"


def test_a_block_quantised_matrix_that_is_stored_transposed(written: Written) -> None:
    x = normal(256, 256) * np.repeat([1, 4], 128).astype(np.float32)
    scale = np.abs(x).reshape(2, 128, 2, 128).max((1, 3)) / np.float32(448)
    codes = quantised(x, np.repeat(np.repeat(scale, 128, 0), 128, 1)).T
    for grid, words in ((scale.T, "stored transposed, and its scales with it"), (scale, "its scales are not")):
        tensors = {NAME: ("F8_E4M3", codes), f"{NAME}_scale_inv": ("F32", grid)}
        place = said(written, tensors, {NAME: ("F32", x)})[NAME]
        assert place.numbers["hypothesis"] == "transposed" and words in place.message


def test_a_scale_is_told_whose_it_is(written: Written) -> None:
    q, k = "layers.1.self_attn.q_proj.weight", "layers.1.self_attn.k_proj.weight"
    values = {q: normal(256, 256), k: 0.5 * normal(256, 256, seed=1)}
    scales = {name: np.abs(x).max() / np.float32(448) for name, x in values.items()}
    reference = {name: ("F32", x) for name, x in values.items()}
    codes = {name: ("F8_E4M3", quantised(x, scales[name])) for name, x in values.items()}

    def cause(of_q: npt.ArrayLike, of_k: npt.ArrayLike) -> CheckPlace:
        return said(
            written,
            codes | {f"{q}_scale": ("F32", np.asarray(of_q)), f"{k}_scale": ("F32", np.asarray(of_k))},
            reference,
        )[k]

    copied = cause(scales[q], scales[q])
    assert copied.numbers["hypothesis"] == "copied_scale" and copied.factor is not None
    assert abs(copied.factor * scales[k] / scales[q] - 1) < 1e-3
    assert f"{k}_scale holds the same number as {q}_scale and does not belong to these codes" in copied.message
    moved = cause(np.float32(1), scales[q])  # where q has lost it
    assert moved.numbers["hypothesis"] == "copied_scale"
    assert f"it is what {q} needs: its largest value in the reference / 448" in moved.message
    stale = cause(scales[q], scales[q] * np.float32(1.3))
    assert stale.numbers["hypothesis"] == "stale" and q not in stale.message


def test_stacked_matrices_are_counted_as_such(written: Written) -> None:
    x = normal(6, 32, 64) * np.arange(1, 7, dtype=np.float32)[:, None, None]
    scale = np.abs(x).max((1, 2)) / np.float32(448)
    codes, swapped = quantised(x, scale[:, None, None]), [0, 1, 4, 3, 2, 5]
    name = "layers.0.mlp.experts.w1.weight"

    def cause(codes: Array, scale: Array) -> CheckPlace:
        tensors = {name: ("F8_E4M3", codes), f"{name}_scale": ("F32", scale)}
        return said(written, tensors, {name: ("F32", x)})[name]

    doubled = scale.copy()
    doubled[3] *= 2
    assert "1 of 6 matrices is off, the others are right: its gain is 2, at matrix 3." in cause(codes, doubled).message
    moved = "matrices of the stack stand in another order: number 2 is the reference's number 4"
    assert f"{moved} (" in cause(codes[swapped], scale[swapped]).message
    assert f"{moved}, and their scales did not move with them (" in cause(codes[swapped], scale).message


def test_norms_that_are_zero_in_the_reference(written: Written) -> None:
    place = said(written, {"norm.weight": ("BF16", np.ones(64))}, {"norm.weight": ("BF16", np.zeros(64))})
    assert "larger by 1: this is 1 + w, the reference w" in place["norm.weight"].message


def test_norms_under_each_others_names(written: Written) -> None:
    norms = {f"{name}_layernorm.weight": ("BF16", 1 + 0.1 * normal(64, seed=seed)) for seed, name in enumerate("ab")}
    places = said(written, dict(zip(norms, list(norms.values())[::-1], strict=True)), norms)
    assert {place.numbers["hypothesis"] for place in places.values()} == {"misplaced"} and len(places) == 2
    assert "these are the weights of b_layernorm.weight" in places["a_layernorm.weight"].message


def test_a_scale_that_is_near_another_layers_is_not_that_where_the_reference_is_rounded(written: Written) -> None:
    x, tensors = normal(256, 256), {}
    scale = np.abs(x).max() / np.float32(448)
    for layer, factor in enumerate((1.0, 1 / 1.03)):
        tensors[f"layers.{layer}.fc.weight"] = ("F8_E4M3", quantised(x, scale))
        tensors[f"layers.{layer}.fc.weight_scale"] = ("F32", scale * np.float32(factor))
    wrong = tensors | {"layers.0.fc.weight_scale": ("F32", scale * np.float32(1.3))}
    place = said(written, wrong, tensors)["layers.0.fc.weight"]
    assert place.numbers["hypothesis"] == "stale" and place.factor is not None and abs(place.factor - 1.3) < 1e-3


def test_what_is_not_finite_is_told_in_a_few_words(written: Written) -> None:
    x = normal(256, 256)
    scale = np.abs(x).max() / np.float32(448)
    codes = quantised(x, scale)
    codes[5] = 0x7F
    tensors = {NAME: ("F8_E4M3", codes), f"{NAME}_scale": ("F32", scale)}
    assert said(written, tensors, {NAME: ("F32", x)})[NAME].brief.startswith("256 not finite; gain 0.99")
