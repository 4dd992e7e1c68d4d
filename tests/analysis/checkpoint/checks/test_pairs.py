"""Codes and scales that have lost each other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from fp8debug.analysis.checkpoint.checks.hit import Subject
from fp8debug.analysis.checkpoint.checks.lost_scales import lost_scales
from fp8debug.analysis.checkpoint.checks.pairs import pairs
from fp8debug.analysis.checkpoint.checks.twice import scale_twice

SubjectOf = Callable[..., Subject]
CODES = ("F8_E4M3", (256, 256))
GRID = ("F32", (2, 2))
PLAIN = ("BF16", (256, 256))


def test_codes_without_scale_and_scale_without_codes(subject_of: SubjectOf) -> None:
    subject = subject_of(
        {
            "layers.0.up_proj.weight": CODES,
            "layers.0.up_proj.weight_scale_inv": GRID,
            "layers.0.gate_proj.weight": CODES,
            "layers.7.gate_proj.weight_scale_inv": GRID,
        }
    )
    hits = {hit.check: hit for hit in pairs(subject)}
    assert hits.keys() == {"scale_missing", "scale_orphan"}
    assert hits["scale_missing"].place.tensor == "layers.0.gate_proj.weight"
    assert "no weight_scale_inv" in hits["scale_missing"].place.message
    assert hits["scale_missing"].of == 2
    assert hits["scale_orphan"].place.tensor == "layers.7.gate_proj.weight_scale_inv"
    assert hits["scale_orphan"].severity == "error"


def test_a_scale_beside_a_weight_in_high_precision_is_a_warning(subject_of: SubjectOf) -> None:
    subject = subject_of({"a.weight": PLAIN, "a.weight_scale_inv": GRID})
    (hit,) = pairs(subject)
    assert (hit.check, hit.severity) == ("scale_orphan", "warning")
    assert "a.weight beside it is BF16" in hit.place.message


def test_a_scale_whose_name_begins_otherwise_is_told_with_its_codes(subject_of: SubjectOf) -> None:
    subject = subject_of({"model.layers.0.q.weight": CODES, "model.language_model.layers.0.q.weight_scale_inv": GRID})
    (orphan,) = (hit for hit in pairs(subject) if hit.check == "scale_orphan")
    assert "model.layers.0.q.weight has no scale; its name begins otherwise" in orphan.place.message


def test_two_scales_are_a_fault_unless_they_are_the_same_numbers(subject_of: SubjectOf) -> None:
    headers = {"a.weight": CODES, "a.weight_scale_inv": GRID, "a.weight_scale": GRID}
    numbers = np.arange(4, dtype="<f4")
    same = {"a.weight_scale_inv": numbers, "a.weight_scale": numbers}
    other = {"a.weight_scale_inv": numbers, "a.weight_scale": numbers + 1}
    (hit,) = scale_twice(subject_of(headers, contents=same))
    assert (hit.check, hit.severity) == ("scale_twice", "note")
    (hit,) = scale_twice(subject_of(headers, contents=other))
    assert (hit.check, hit.severity) == ("scale_twice", None)
    assert "weight_scale_inv and weight_scale, with other numbers" in hit.place.message


def test_a_model_that_was_cast_without_any_scale_lacks_none(subject_of: SubjectOf) -> None:
    assert not list(pairs(subject_of({"a.weight": CODES, "b.weight": CODES, "c.weight": PLAIN}, dialect="none")))


def test_parameters_that_are_called_scales_need_no_codes(read_subject: SubjectOf) -> None:
    headers: dict[str, tuple[str, tuple[int, ...]]] = {
        f"block.{n}.layer_scale_{m}": ("F32", (64,)) for n in range(4) for m in (1, 2)
    }
    headers |= {f"block.{n}.mlp.fc1.weight": PLAIN for n in range(4)}
    assert not list(pairs(read_subject(headers)))


def test_bytes_that_lost_what_says_they_are_codes(read_subject: SubjectOf) -> None:
    headers: dict[str, tuple[str, tuple[int, ...]]] = {}
    for layer in range(4):
        module = f"model.layers.{layer}.mlp.up_proj"
        headers[f"{module}.weight"] = ("U8", (64, 32))
        headers[f"{module}.weight_scale"] = ("F8_E4M3", (64, 4))
        headers[f"{module}.weight_scale_2"] = ("F32", ())
    del headers["model.layers.2.mlp.up_proj.weight_scale"]
    (hit,) = pairs(read_subject(headers, dialect="modelopt"))
    assert (hit.check, hit.place.tensor) == ("scale_missing", "model.layers.2.mlp.up_proj.weight")
    assert "U8 bytes, codes in the layers beside it, and no weight_scale" in hit.place.message
    assert not list(lost_scales(read_subject(headers, dialect="modelopt")))


@pytest.mark.parametrize(
    ("other", "severities"),
    [
        (np.full((2, 2), 0.01, "<f4"), ["note"]),
        (np.full((2, 2), 100, "<f4"), []),  # its inverse
        (np.full((), 0.01, "<f4"), [None]),
    ],
)
def test_a_second_scale_that_is_not_applied(
    read_subject: SubjectOf, other: npt.NDArray[np.float32], severities: list[str | None]
) -> None:
    headers = {"a.weight": CODES, "a.weight_scale_inv": GRID, "a.weight_scale": ("F32", other.shape)}
    contents = {"a.weight_scale_inv": np.full(4, 0.01, "<f4"), "a.weight_scale": other}
    hits = list(scale_twice(read_subject(headers, contents=contents, dialect="deepseek")))
    assert [(hit.check, hit.severity) for hit in hits] == [("scale_twice", severity) for severity in severities]
