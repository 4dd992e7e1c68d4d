"""What no scale for the whole tensor can help: blocks, a single GEMM, the whole layer; and the other format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fp8debug.analysis import Run, open_run
from fp8debug.analysis.remedies import KINDS, Remedy, search
from fp8debug.plans import BF16

if TYPE_CHECKING:
    from pathlib import Path

    from tests.analysis.remedies.conftest import Courses

Outcomes = Callable[[Remedy], list[tuple[str, str, str]]]


@pytest.fixture(scope="module")
def outliers(new_courses: Callable[..., Courses]) -> Iterator[Run]:
    """x with a channel, or a tile of blocks, 2^20 larger; the layer `unknown` was recorded under current alone."""
    courses = new_courses("current", "mxfp8")
    for layer, shape, larger, recipes in (
        ("channel", (64, 128), (slice(None), 5), ("current", "mxfp8")),
        ("unknown", (64, 128), (slice(None), 5), ("current",)),
        # Whole blocks of 32 along either axis, and less than 1 % of the values: they alone are not the large ones.
        ("tile", (320, 352), (slice(0, 32), slice(0, 32)), ("current", "mxfp8")),
    ):
        rng = np.random.default_rng(3)
        x = (rng.choice([-1.0, 1.0], shape) * rng.integers(130, 250, shape) / 128).astype(np.float32)
        x[larger] *= 2.0**20
        w, dy = courses.bell((32, shape[1]), 7), courses.bell((shape[0], 32), 8)
        for step in range(2):
            courses.run.add_linear(layer, step=step, recipes=recipes, x=x, w=w, dy=dy)
    with open_run(courses.run.write(), threads=1) as run:
        yield run


@pytest.fixture(scope="module")
def found(outliers: Run) -> dict[str, Remedy]:
    return {remedy.layer: remedy for remedy in search(outliers)}


def test_blocks_where_the_outliers_fill_theirs(found: dict[str, Remedy], outcomes: Outcomes) -> None:
    assert outcomes(found["tile"]) == [
        ("format", "current:fp8_format=E5M2", "not_enough"),
        ("block", "block", "not_recorded"),
        ("mxfp8", "mxfp8", "fixes"),
    ]
    assert found["tile"].trials[1].note == "record it: `fp8debug attach --recipe block ...`"


def test_one_gemm_in_bf16_where_the_outliers_spoil_blocks_one_way(found: dict[str, Remedy], outcomes: Outcomes) -> None:
    # Along K the channel shares its blocks with 31 others, along the tokens it has them to itself.
    remedy = found["channel"]
    assert outcomes(remedy)[-2:] == [("mxfp8", "mxfp8", "not_enough"), ("gemm_bf16", "bf16", "fixes")]
    assert remedy.trials[-2].underflow == pytest.approx(31 / 128, rel=0.01)
    assert remedy.chosen is not None
    assert (remedy.chosen.gemm, remedy.chosen.rest, remedy.chosen.underflow) == ("fprop", "mxfp8", 0)


def test_the_layer_in_bf16_where_nothing_else_is_known_to_help(found: dict[str, Remedy], outcomes: Outcomes) -> None:
    assert outcomes(found["unknown"])[-3:] == [
        ("block", "block", "not_recorded"), ("mxfp8", "mxfp8", "not_recorded"), ("layer_bf16", BF16, "fixes"),
    ]  # fmt: skip


def test_a_block_recipe_in_use_needs_one_gemm_in_bf16(outliers: Run, outcomes: Outcomes) -> None:
    (remedy,) = search(outliers, recipe="mxfp8")
    assert (remedy.layer, outcomes(remedy)) == ("channel", [("gemm_bf16", "bf16", "fixes")])
    assert remedy.chosen is not None
    assert (remedy.chosen.gemm, remedy.chosen.rest) == ("fprop", None)


def test_e5m2_for_x_needs_another_format_for_dy(outliers: Run, found: dict[str, Remedy], outcomes: Outcomes) -> None:
    # 2^20 is within the range of E5M2, 2^32; but two operands in E5M2 are more than cuBLAS multiplies.
    assert found["channel"].trials[0].note == "wgrad would multiply two E5M2 operands, which cuBLAS does not"
    (remedy,) = search(outliers, [("channel", "x")], recipe="current:fp8_format=E4M3")
    assert outcomes(remedy) == [("format", "current:fp8_format=E5M2", "fixes")]


def test_underflow_in_blocks_that_costs_nothing_does_not_count(new_courses: Callable[..., Courses]) -> None:
    # A tenth of the values is 2^-20 of the others: gone in blocks as under one scale, and no loss in either. The other
    # tensor has one value of 2^22, and under one scale all the small ones are gone.
    courses = new_courses("current", "mxfp8")
    sparse, spiked = courses.bell(), courses.bell()
    sparse.reshape(-1)[::10] *= 2.0**-20
    spiked[0, 0] = 2.0**22
    for layer, x in (("sparse", sparse), ("spiked", spiked)):
        for step in range(3):
            seq = courses.run.add(layer, "x", x, step=step)
            for gemm in ("fprop", "wgrad"):
                courses.run.add_detail(
                    "blocks", seq, recipe="mxfp8", fmt="E4M3", alternate=False, gemm=gemm, orientation="row",
                    sample="all", n_total=1024, n=1024, n_nonzero=1024, n_underflow=102, n_overflow=0, sum_x2=1.0,
                    sum_q2=1.0, sum_xq=1.0, sum_err2=1e-3, n_blocks=32, n_zero_blocks=0, n_nonfinite_blocks=0,
                    n_saturated_blocks=0, scale_min=1.0, scale_median=1.0, scale_max=1.0,
                )  # fmt: skip
    with open_run(courses.run.write(), threads=1) as run:
        assert [remedy.layer for remedy in search(run, recipe="mxfp8")] == ["spiked"]


def test_dy_in_e4m3_where_two_bits_of_mantissa_are_too_few(
    new_courses: Callable[..., Courses], outcomes: Outcomes
) -> None:
    courses = new_courses("current")
    for step in range(3):
        courses.run.add("fc", "dy", courses.bell(), step=step)
    with open_run(courses.run.write(), threads=1, thresholds={"sqnr_floor_e5m2": 27.0}) as run:
        (remedy,) = search(run)
    assert outcomes(remedy) == [("format", "current:fp8_format=E4M3", "fixes")]
    # One bit of mantissa more is about 6 dB.
    assert (remedy.trials[0].sqnr_db or 0) - (remedy.present.sqnr_db or 0) == pytest.approx(6.0, abs=0.5)


def test_the_planted_outlier_of_the_sample_dump(repository: Path) -> None:
    # One channel in the x of two layers, made up for in the weight: along K it spoils blocks, too.
    with open_run(repository / "sample_dumps" / "gpt-outlier", threads=1) as run:
        for recipe in (None, "mxfp8"):
            found = search(run, recipe=recipe)
            assert {(remedy.layer, remedy.tensor) for remedy in found} == {("blocks.1.fc1", "x"), ("blocks.2.qkv", "x")}
            for remedy in found:
                assert remedy.chosen is remedy.trials[-1]
                assert (remedy.chosen.kind, remedy.chosen.gemm) == ("gemm_bf16", "fprop")
                kinds = [KINDS.index(trial.kind) for trial in remedy.trials]
                assert kinds == sorted(kinds)
                assert [trial.outcome for trial in remedy.trials].count("fixes") == 1
