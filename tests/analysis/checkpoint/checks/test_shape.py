"""Grids of scales against the sizes of their codes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fp8debug.analysis.checkpoint.checks.hit import Subject
from fp8debug.analysis.checkpoint.checks.shape import shape
from fp8debug.analysis.checkpoint.records import Misfit

SubjectOf = Callable[..., Subject]


def one(lines: int, length: int, grid: tuple[int, ...]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {"a.weight": ("F8_E4M3", (lines, length)), "a.weight_scale_inv": ("F32", grid)}


def test_whole_blocks_say_nothing_and_a_partial_one_is_a_note(subject_of: SubjectOf) -> None:
    assert list(shape(subject_of(one(256, 512, (2, 4))))) == []
    (hit,) = shape(subject_of(one(576, 512, (5, 4))))
    assert (hit.check, hit.place.message) == (
        "block_partial",
        "a.weight: the last block has 64 of 128 lines (576).",
    )


def test_a_grid_that_does_not_fit_is_told_with_the_one_that_would(read_subject: SubjectOf) -> None:
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    (hit,) = shape(read_subject(one(256, 512, (2, 7)), configs={"config.json": config}))
    assert hit.check == "scale_misfit"
    assert "a.weight_scale_inv [2, 7] for a.weight [256, 512], expected [2, 4]." in hit.place.message


def test_tensors_of_a_kind_end_in_part_of_a_block_once(subject_of: SubjectOf) -> None:
    headers: dict[str, tuple[str, tuple[int, ...]]] = {}
    for layer in range(3):
        headers |= {f"layers.{layer}.{name}": header for name, header in one(576, 512, (5, 4)).items()}
    (hit,) = shape(subject_of(headers))
    assert hit.place.message == "layers.0.a.weight and 2 like it: the last block has 64 of 128 lines (576)."


def test_a_grid_stored_columns_first(subject_of: SubjectOf) -> None:
    subject = subject_of(one(256, 512, (4, 2)))
    (codes,) = subject.convention.quantised
    turned = replace(codes, scales=(replace(codes.scales[0], is_transposed=True),))
    (hit,) = shape(replace(subject, convention=replace(subject.convention, quantised=(turned,))))
    assert hit.check == "grid_transposed"
    assert "give [2, 4]" in hit.place.message


def test_another_block_than_the_configuration_states(subject_of: SubjectOf) -> None:
    subject = subject_of(one(256, 512, (4, 8)), block=(64, 64))
    stated = replace(subject.convention, block=(128, 128), block_from="config.json")
    (hit,) = shape(replace(subject, convention=stated))
    assert hit.check == "block_not_as_configured"
    assert "blocks of 64 x 64, and config.json says 128 x 128" in hit.place.message


def test_what_fits_in_no_way_is_told_with_what_would(subject_of: SubjectOf) -> None:
    subject = subject_of({"a.weight": ("F8_E4M3", (256, 512))})
    misfit = Misfit("a.weight", "a.weight_scale_inv", (3, 4), ((2, 4), (256,)), "No block size gives 3 lines.")
    (hit,) = shape(replace(subject, convention=replace(subject.convention, misfits=(misfit,))))
    assert hit.place.message == (
        "a.weight_scale_inv [3, 4] for a.weight [256, 512], expected [2, 4] or [256]. No block size gives 3 lines."
    )
    assert hit.place.numbers["expected"] == "[2, 4] or [256]"


def test_one_scale_in_another_dtype(subject_of: SubjectOf) -> None:
    headers = {}
    for layer in range(5):
        headers[f"layers.{layer}.q.weight"] = ("F8_E4M3", (128, 128))
        headers[f"layers.{layer}.q.weight_scale_inv"] = ("BF16" if layer == 3 else "F32", (1, 1))
    (hit,) = shape(subject_of(headers))
    assert (hit.check, hit.place.tensor) == ("scale_dtype", "layers.3.q.weight_scale_inv")
    assert "is BF16, 4 of 5 of its kind are F32" in hit.place.message
