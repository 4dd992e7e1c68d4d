"""Scales, codes and magnitudes: what is told of numbers, what is left alone, and how large a number has to be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf, nan
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from fp8debug.analysis.checkpoint.checks.codes import codes
from fp8debug.analysis.checkpoint.checks.columns import column_clipped
from fp8debug.analysis.checkpoint.checks.families import families
from fp8debug.analysis.checkpoint.checks.hit import Hit, Subject, check_texts
from fp8debug.analysis.checkpoint.checks.magnitude import magnitude
from fp8debug.analysis.checkpoint.checks.nonfinite import nonfinite
from fp8debug.analysis.checkpoint.checks.scales import scales
from fp8debug.analysis.checkpoint.measuring import measure, scales_only
from fp8debug.analysis.checkpoint.records import Convention, Quantised, Scale
from fp8debug.analysis.checkpoint.store import open_store

Array = npt.NDArray[Any]
Written = Callable[..., Path]
Looked = Callable[..., dict[str, list[Hit]]]
RNG = np.random.default_rng(11)
NORMAL = (RNG.standard_normal((64, 64)) * 0.03).astype(np.float32)


class Layers:
    """Layers of codes, each with its scale."""

    def __init__(self) -> None:
        self.tensors: dict[str, tuple[str, Array]] = {}
        self.quantised: list[Quantised] = []
        self.others: list[Scale] = []

    def add(
        self,
        name: str,
        codes: Array,
        scale: npt.ArrayLike,
        *,
        divides: bool = False,
        layout: str = "tensor",
        block: tuple[int, int] | None = None,
        dtype: str = "F32",
        fmt: str = "E4M3",
    ) -> None:
        stored = np.asarray(scale, np.uint8 if dtype == "U8" else np.float32)
        encoding = {"U8": "E8M0"}.get(dtype, dtype)
        of = Scale(f"{name}.weight_scale", "weight", encoding, stored.shape, divides, layout, block, False, name)
        self.tensors[f"{name}.weight"] = (f"F8_{fmt}", codes)
        self.tensors[of.name] = (dtype, stored)
        self.quantised.append(Quantised(f"{name}.weight", name, fmt, codes.shape, (of,)))

    def add_input(self, name: str, scale: float) -> None:
        self.tensors[f"{name}.input_scale"] = ("F32", np.asarray(scale))
        self.others.append(Scale(f"{name}.input_scale", "input", "F32", (), False, "tensor", module=name))

    def weights(self, n: int, values: Callable[[int], Array] = lambda i: NORMAL, largest: float = 448) -> None:
        for i in range(n):
            self.add(f"layers.{i}.fc", *cast(values(i), largest))


def cast(values: Array, largest: float = 448) -> tuple[Array, float]:
    scale = float(np.abs(values).max()) / largest or 1.0
    return (values / scale).clip(-448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8), scale


@pytest.fixture
def looked(written: Written) -> Looked:
    """`looked(check, layers)`: its hits by name of the check; `plain=` further tensors."""

    def look(
        check: Callable[[Subject], Any],
        layers: Layers,
        *,
        plain: Mapping[str, tuple[str, Array]] | None = None,
        power_of_two: bool | None = None,
        headers_only: bool = False,
    ) -> dict[str, list[Hit]]:
        plain = plain or {}
        convention = Convention(
            "any", "", "", tuple(layers.quantised), tuple(layers.others), plain=tuple(plain), power_of_two=power_of_two
        )
        with open_store(written(layers.tensors | dict(plain))) as store:
            facts = scales_only(store, convention) if headers_only else measure(store, convention)
            found: dict[str, list[Hit]] = {}
            for hit in check(Subject(store, convention, facts)):
                assert hit.check in check_texts() and hit.place.message.endswith(".") | ("?" in hit.place.message)
                found.setdefault(hit.check, []).append(hit)
            return found

    return look


def test_a_grid_names_how_many_and_where(looked: Looked) -> None:
    layers = Layers()
    grid = np.full((2, 2), 1e-3)
    grid[0, 1], grid[1] = nan, (inf, -1e-3)
    layers.add("fc", cast(NORMAL)[0], grid, layout="block", block=(32, 32))
    found = looked(scales, layers)
    (odd,), (negative,) = found["scale_nonfinite"], found["scale_negative"]
    assert "fc.weight_scale: 2 of 4 numbers are infinite (1) or NaN (1)" in odd.place.message
    assert "1 of 4 numbers is negative" in negative.place.message
    layers = Layers()
    layers.add("fc", cast(NORMAL)[0], [[115, 255]], layout="block", block=(64, 32), dtype="U8")
    (odd,) = looked(scales, layers)["scale_nonfinite"]
    assert "1 of 2 numbers is NaN (byte 0xFF) (at [0, 1])" in odd.place.message


@pytest.mark.parametrize(
    ("codes_too", "divides", "headers_only", "expected"),
    [
        (False, False, False, "error"),
        (True, False, False, None),
        (True, True, False, "error"),
        (True, False, True, "note"),
    ],
)
def test_a_scale_of_zero(
    codes_too: bool, divides: bool, headers_only: bool, expected: str | None, looked: Looked
) -> None:
    layers = Layers()
    layers.add("fc", np.zeros((64, 64), np.uint8) if codes_too else cast(NORMAL)[0], 0.0, divides=divides)
    found = looked(scales, layers, headers_only=headers_only).get("scale_zero", [])
    severities = [hit.severity or check_texts()["scale_zero"].severity for hit in found]
    assert severities == ([expected] if expected else [])


@pytest.mark.parametrize(("n_zero", "severity"), [(3, "note"), (128, None)])
def test_blocks_that_are_nothing_beside_the_others(n_zero: int, severity: str | None, looked: Looked) -> None:
    layers = Layers()
    grid = np.full((64, 4), 0x38, np.uint8)
    grid.reshape(-1)[:n_zero] = 0
    of = Scale("fc.weight_scale", "weight", "E4M3", grid.shape, False, "block", (1, 16), False, "fc")
    second = Scale("fc.weight_scale_2", "tensor", "F32", (), False, "tensor", module="fc")
    layers.tensors = {"fc.weight": ("U8", np.full((64, 32), 0x21, np.uint8)), of.name: ("F8_E4M3", grid)}
    layers.tensors[second.name] = ("F32", np.array(3e-4))
    layers.quantised = [Quantised("fc.weight", "fc", "E2M1", (64, 64), (of, second), True)]
    (hit,) = looked(scales, layers)["scale_zero"]
    assert hit.severity == severity
    assert f"{n_zero} of 256 numbers are zero" in hit.place.message
    assert f"{n_zero} of them over codes that are not all zero" in hit.place.message


def test_siblings_of_which_one_is_far_off(looked: Looked) -> None:
    layers = Layers()
    for i in range(8):
        layers.add(f"layers.{i}.fc", cast(NORMAL)[0], 1e-3 * 2.0 ** (i % 3 - (10 if i == 5 else 0)))
        layers.add_input(f"layers.{i}.fc", 2.0 ** (-6 if i != 2 else 6))  # activations of one layer may be that large
    found = looked(scales, layers)
    assert {check: [hit.place.tensor for hit in hits] for check, hits in found.items()} == {
        "scale_far_off": ["layers.5.fc.weight_scale"]
    }
    assert found["scale_far_off"][0].severity is None


@pytest.mark.parametrize(
    ("numbers", "n_far"),
    [
        ([1e-3] * 7 + [1e-9], 1),
        ([1e-3] * 3 + [1e-9] * 3, 0),  # no majority
        ([1e-3, 1e-9], 0),
        ([10.0**-i for i in range(8)], 0),  # spread out
    ],
)
def test_outliers_need_a_family_that_agrees(numbers: list[float], n_far: int, looked: Looked) -> None:
    layers = Layers()
    for i, number in enumerate(numbers):
        layers.add(f"layers.{i}.fc", cast(NORMAL)[0], number)
    assert len(looked(scales, layers).get("scale_far_off", [])) == n_far


def test_experts_in_one_stacked_scale_are_listed_by_number(looked: Looked) -> None:
    layers = Layers()
    stack = np.stack([cast(NORMAL)[0]] * 8)
    layers.add("experts.w1", stack, np.array([0.01, 0.012, inf, 0.011, nan, 0, 1e-30, 0.009])[:, None, None])
    found = looked(scales, layers)
    summary = "Of 8 siblings 4 are unusable or far off, 4 are fine: infinite (2), NaN (4), zero (5), far off (6)."
    assert set(found) == {"scale_nonfinite", "scale_zero", "scale_far_off"}
    assert all(summary in hits[0].place.message for hits in found.values())
    assert "experts.w1.weight_scale ([6]) is 1e-30" in found["scale_far_off"][0].place.message


def test_names_of_siblings_are_told_by_what_differs(looked: Looked, written: Written) -> None:
    layers = Layers()
    for layer in range(2):
        for expert in range(3):
            layers.add_input(f"layers.{layer}.experts.{expert}.w1", nan if layer == 1 and expert else 0.01)
    (first, second) = looked(scales, layers)["scale_nonfinite"]
    assert "(layer 1 expert 1) is NaN" in first.place.message
    assert "Of 6 siblings 2 are unusable or far off, 4 are fine: NaN (1.1, 1.2)." in second.place.message


def test_ones_of_all_and_of_some(looked: Looked) -> None:
    layers = Layers()
    for i in range(4):
        layers.add(f"layers.{i}.fc", cast(NORMAL)[0], 1.0 if i == 3 else 0.3)
        layers.add_input(f"layers.{i}.fc", 1.0)
    first, second = looked(scales, layers)["scale_one"]
    assert {(hit.severity, hit.place.numbers["n"]) for hit in (first, second)} == {(None, 4), ("watch", 1)}


def test_powers_of_two_are_noted_or_miss_what_was_promised(looked: Looked) -> None:
    layers = Layers()
    layers.add("a", cast(NORMAL)[0], 2.0**-9)
    layers.add("b", cast(NORMAL)[0], 2.0**-8)
    (note,) = looked(scales, layers)["scale_power_of_two"]
    assert "all 2 scales of codes are powers of two, stored as F32; the largest E4M3 codes" in note.place.message
    assert set(looked(scales, layers, power_of_two=True)) == set()
    layers.add("c", cast(NORMAL)[0], [0.25, 3e-4], layout="block", block=(64, 32))
    (hit,) = looked(scales, layers, power_of_two=True)["scale_not_power_of_two"]
    assert (hit.place.tensor, "such as 0.0003" in hit.place.message) == ("c.weight_scale", True)
    assert looked(scales, layers) == {}


@pytest.mark.parametrize(
    "values",
    [
        NORMAL,
        RNG.uniform(-0.1, 0.1, (64, 64)).astype(np.float32),
        RNG.integers(-1, 2, (64, 64)).astype(np.float32) * 0.02,
        RNG.standard_t(2, (64, 64)).astype(np.float32) * 0.02,
        np.where(RNG.random((64, 64)) < 0.5, 0, NORMAL),
        np.zeros((64, 64), np.float32),
    ],
    ids=["normal", "uniform", "ternary", "heavy", "pruned", "zero"],
)
def test_healthy_codes(values: Array, looked: Looked) -> None:
    layers = Layers()
    layers.weights(8, lambda i: values)
    found = looked(codes, layers) | looked(magnitude, layers)
    assert set(found) <= {"code_all_zero"}


def test_clipped_codes(looked: Looked) -> None:
    for sigmas, severity in ((0.5, "warning"), (2.7, None)):
        layers = Layers()
        scale = sigmas * 0.03 / 448
        layers.add("fc", (NORMAL / scale).clip(-448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8), scale)
        (hit,) = looked(codes, layers)["code_clipped"]
        assert hit.severity == severity
        assert hit.place.numbers["clipped"] == pytest.approx({0.5: 0.617, 2.7: 0.004}[sigmas], rel=0.6)


def test_blocks_and_tensors_that_do_not_reach_the_maximum(looked: Looked) -> None:
    layers = Layers()
    blocks = np.stack([cast(NORMAL[:4, :4])[0] for _ in range(32)])
    blocks[:4] = cast(NORMAL[:4, :4], 100)[0]
    layers.add("fc", blocks, np.full((32, 1, 1), 0.01))
    (hit,) = looked(codes, layers)["code_blocks_below"]
    assert "in 4 of 32 blocks no code comes near 448" in hit.place.message
    layers = Layers()
    layers.weights(9)
    layers.add("layers.9.fc", *cast(NORMAL, 100))
    (hit,) = looked(codes, layers)["code_blocks_below"]
    assert hit.place.tensor == "layers.9.fc.weight" and "no code is larger than 96" in hit.place.message


def test_lines_of_nan_are_no_other_format_and_hide_the_largest_codes(looked: Looked) -> None:
    values = NORMAL.copy()
    values[:2, :8] = 0
    for row, name in ((0x7F, "E4M3"), (0x80, "E4M3FNUZ")):
        layers = Layers()
        raw = cast(values, 240)[0]
        raw[raw == 0x80] = 0
        raw[5] = row
        layers.add("fc", raw, 1e-4, fmt=name)
        assert set(looked(codes, layers)) <= {"code_maximum"}
    layers = Layers()
    layers.weights(9)
    small, scale = cast(NORMAL, 100)
    small[np.abs(NORMAL) == np.abs(NORMAL).max()] = 0x7F
    layers.add("layers.9.fc", small, scale)
    blocks = np.stack([cast(NORMAL[:4, :4])[0] for _ in range(32)])
    blocks[:4] = cast(NORMAL[:4, :4], 100)[0]
    blocks[:4, 0, 0] = 0x7F
    layers.add("stack", blocks, np.full((32, 1, 1), 0.01))
    assert not looked(codes, layers)


def test_codes_at_the_maximum_gather_in_columns_by_chance(looked: Looked) -> None:
    layers = Layers()
    values = np.random.default_rng(4).standard_normal((256, 256))
    layers.add("fc", cast(values.clip(-3.2, 3.2))[0], 1e-4)
    raw = layers.tensors["fc.weight"][1]
    assert np.count_nonzero(raw & 0x7F == 0x7E, axis=0).max() >= 3
    assert not looked(column_clipped, layers)
    values[:, 7] *= 4
    layers.add("stands.out", cast(values.clip(-6, 6))[0], 1e-4)
    (hit,) = looked(column_clipped, layers)["column_clipped"]
    assert (hit.place.tensor, hit.place.numbers["column"]) == ("stands.out.weight", 7)


def test_another_maximum_needs_enough_blocks_unless_it_is_known(looked: Looked) -> None:
    for largest, n, expected in ((240, 2, 1), (300, 2, 0), (300, 8, 1), (448, 8, 0)):
        layers = Layers()
        layers.weights(n, largest=largest)
        assert len(looked(codes, layers).get("code_maximum", [])) == expected


def test_magnitudes_against_siblings_in_high_precision(looked: Looked) -> None:
    layers = Layers()
    layers.add("layers.0.fc", *cast(NORMAL))
    layers.add("layers.1.fc", cast(NORMAL)[0], 448 * 448 * 0.03 / 4)
    plain = {f"layers.{i}.fc.weight": ("BF16", NORMAL) for i in range(2, 6)}
    (hit,) = looked(magnitude, layers, plain=plain)["magnitude_too_large"]
    assert hit.place.tensor == "layers.1.fc.weight" and hit.place.factor is not None
    assert hit.place.numbers["expected_rms"] == pytest.approx(0.03, rel=0.05)


def test_exponents_read_as_integers_where_some_blocks_are_all_zero(looked: Looked) -> None:
    layers = Layers()
    exponents = np.full((64, 2), 116.0)
    exponents[3] = 0
    layers.add("fc", cast(NORMAL * 10)[0], exponents, layout="block", block=(1, 32), dtype="BF16")
    (hit,) = looked(magnitude, layers)["magnitude_too_large"]
    assert "its scales are integers from 0 to 116, as E8M0 exponents are" in hit.place.message


@pytest.mark.parametrize("name", ["layers.0.k_cache", "past_key_values.0.key", "layers.0.mlp.hidden_states", "dy"])
def test_what_is_no_weight_may_have_any_magnitude(name: str, looked: Looked) -> None:
    layers = Layers()
    layers.tensors = {name: ("F8_E4M3", cast(NORMAL)[0])}
    layers.quantised = [Quantised(name, name, "E4M3", NORMAL.shape, ())]
    assert not looked(magnitude, layers)


@pytest.mark.parametrize(("bits", "severity"), [(-12, None), (-30, "warning")])
def test_weights_that_are_next_to_nothing(bits: int, severity: str | None, looked: Looked) -> None:
    layers = Layers()
    layers.weights(5, lambda i: NORMAL * 2.0 ** (bits if i == 3 else 0))
    (hit,) = looked(magnitude, layers)["magnitude_too_small"]
    assert (hit.place.tensor, hit.severity) == ("layers.3.fc.weight", severity)
    assert hit.place.factor == pytest.approx(2.0**bits)


def test_experts_that_are_used_beside_many_that_are_not(looked: Looked) -> None:
    layers = Layers()
    layers.weights(8, lambda i: NORMAL * (1 if i < 2 else 2e-3))
    assert "magnitude_too_large" not in looked(magnitude, layers)


def test_a_second_level_that_was_left_out(looked: Looked) -> None:
    layers = Layers()
    packed = RNG.integers(0, 256, (64, 32)).astype(np.uint8)
    grid = RNG.integers(0x50, 0x7F, (64, 4)).astype(np.uint8)  # as large as if it were inverted, too
    of = Scale("fc.weight_scale", "weight", "E4M3", grid.shape, False, "block", (1, 16), False, "fc")
    layers.tensors = {"fc.weight": ("U8", packed), of.name: ("F8_E4M3", grid)}
    layers.quantised = [Quantised("fc.weight", "fc", "E2M1", (64, 64), (of,), True)]
    (hit,) = looked(magnitude, layers)["magnitude_too_large"]
    assert "its E4M3 scales have no second level" in hit.place.message


def test_what_is_meant_to_be_infinite_is_noted(looked: Looked) -> None:
    mask = np.triu(np.full((8, 8), -inf), 1)
    found = looked(nonfinite, Layers(), plain={"attn.mask": ("F32", mask), "attn.bias": ("F32", mask)})["nonfinite"]
    assert {hit.place.tensor: hit.severity for hit in found} == {"attn.mask": "note", "attn.bias": None}


def test_a_nan_of_one_matrix_of_a_stack(looked: Looked) -> None:
    stack = np.zeros((4, 8, 16))
    stack[2, 3, 4] = nan
    (hit,) = looked(nonfinite, Layers(), plain={"w.weight": ("F16", stack)})["nonfinite"]
    assert hit.place.message == "w.weight: 1 NaN of 512, in row 3 of matrix 2."
    stack[0], stack[3, 7] = nan, inf
    (hit,) = looked(nonfinite, Layers(), plain={"w.weight": ("F16", stack)})["nonfinite"]
    assert "129 NaN and 16 infinite of 512, in 10 rows: 0-7 of matrix 0, 3 of matrix 2" in hit.place.message


def test_families_are_those_that_differ_in_numbers(written: Written) -> None:
    layers = Layers()
    layers.weights(3)
    layers.add_input("layers.0.fc", 0.5)
    convention = Convention("any", "", "", tuple(layers.quantised), tuple(layers.others))
    with open_store(written(layers.tensors)) as store:
        found = families(Subject(store, convention, measure(store, convention)))
    assert {(one.pattern, one.n) for one in found} == {("layers.*.fc.weight_scale", 3), ("layers.*.fc.input_scale", 1)}
