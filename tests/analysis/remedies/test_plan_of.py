"""Remedies as a plan: what is for an operand, what for a layer, and how two operands of one layer agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fp8debug.analysis import Run, open_run
from fp8debug.analysis.remedies import Remedy, Trial, plan_of, search

if TYPE_CHECKING:
    from tests.analysis.remedies.conftest import Courses

NOW = Trial("in_use", "delayed", "not_enough", note="57 % become zero, small values keep 3.1 dB")


@pytest.fixture(scope="module")
def outliers(new_courses: Callable[..., Courses]) -> Iterator[Run]:
    """The same x in three layers, with a channel 2^20 larger: beside a sound w, a w as bad, and without blocks."""
    courses = new_courses("current", "mxfp8")
    for layer, w_factor, recipes in (("one", 1.0, ("mxfp8",)), ("both", 2.0**20, ("mxfp8",)), ("bare", 1.0, ())):
        x, w, dy = courses.bell((64, 128)), courses.bell((32, 128), 7), courses.bell((64, 32), 8)
        x[:, 5] = np.abs(x[:, 5] + 1) * 2.0**20
        w[:, 70] *= w_factor
        for step in range(2):
            courses.run.add_linear(layer, step=step, recipes=recipes, x=x, w=w, dy=dy)
    with open_run(courses.run.write(), threads=1) as opened:
        yield opened


def test_the_plan_of_remedies(outliers: Run) -> None:
    plan = plan_of(outliers, search(outliers))
    changes = {(entry.layer, entry.tensor, entry.gemm): entry.change for entry in plan.entries}
    # A block recipe is for a whole layer, since both operands of a GEMM are scaled alike.
    assert changes[("one", None, None)] == "mxfp8"
    assert changes[("one", None, "fprop")] == "bf16"
    assert plan.change_of("one", "w", "fprop") == "bf16"
    assert plan.change_of("one", "x", "wgrad") == "mxfp8"
    assert changes[("bare", None, None)] == "bf16"
    # x has one GEMM in BF16 and so has w: the same one.
    assert {gemm for layer, _, gemm in changes if layer == "both"} == {None, "fprop"}
    assert plan.layers_in_bf16 == ("bare",)
    # All GEMMs cost the same here: one of each of two layers, three of the third, of nine.
    assert plan.flops_kept == pytest.approx(1 - 5 / 9)
    (reason,) = [entry.reason for entry in plan.entries if entry.layer == "bare"]
    assert reason.startswith("x in current: ")
    assert reason.endswith("the other format does not help enough; the layer runs in BF16.")


def chose(tensor: str, kind: str, change: str, *, layer: str = "one", **more: str) -> Remedy:
    tried = Trial("current", "current", "not_enough")
    trial = Trial(kind, change, "fixes", sqnr_db=29.84, underflow=0.0012, **more)  # type: ignore[arg-type]
    return Remedy(layer, tensor, (tried, trial), trial, "delayed", NOW)


def changes(run: Run, *remedies: Remedy) -> list[tuple[str | None, str | None, str]]:
    return [(entry.tensor, entry.gemm, entry.change) for entry in plan_of(run, remedies).entries]


def test_a_scale_is_for_an_operand(outliers: Run) -> None:
    chosen = (chose("x", "margin", "delayed:margin=1"), chose("w", "current", "current"))
    assert changes(outliers, *chosen) == [("x", None, "delayed:margin=1"), ("w", None, "current")]


def test_blocks_are_for_the_layer_where_they_suit_the_other_operand_too(outliers: Run) -> None:
    x, w = chose("x", "mxfp8", "mxfp8"), chose("w", "margin", "delayed:margin=1")
    assert changes(outliers, x, w) == [(None, None, "mxfp8")]
    # The w of `both` has an outlier channel that spoils its blocks in fprop; that of `bare` was not measured in any.
    for layer in ("both", "bare"):
        x, w = chose("x", "mxfp8", "mxfp8", layer=layer), chose("w", "margin", "delayed:margin=1", layer=layer)
        assert changes(outliers, x, w) == [(None, None, "bf16")]
    # With fprop in BF16 its blocks are sound.
    x = chose("x", "gemm_bf16", "bf16", layer="both", gemm="fprop", rest="mxfp8")
    same = chose("w", "gemm_bf16", "bf16", layer="both", gemm="fprop", rest="mxfp8")
    for other in (same, chose("w", "margin", "delayed:margin=1", layer="both")):
        assert changes(outliers, x, other) == [(None, None, "mxfp8"), (None, "fprop", "bf16")]


def test_a_layer_that_cannot_please_both_goes_to_bf16(outliers: Run) -> None:
    x = chose("x", "mxfp8", "mxfp8")
    assert changes(outliers, x, chose("w", "block", "block")) == [(None, None, "bf16")]
    assert changes(outliers, x, chose("w", "layer_bf16", "bf16")) == [(None, None, "bf16")]


def test_the_reason_has_the_numbers(outliers: Run) -> None:
    plan = plan_of(outliers, [chose("x", "mxfp8", "mxfp8")])
    assert plan.entries[0].reason == (
        "x in delayed: 57 % become zero, small values keep 3.1 dB; current scaling does not help enough; "
        "mxfp8 gives 29.8 dB, 0.12 % underflow."
    )
    assert plan.recipe == "delayed"


def test_what_is_fine_changes_nothing(outliers: Run) -> None:
    plan = plan_of(outliers, [Remedy("one", "w", (), None, "delayed", Trial("in_use", "delayed", "fine"))])
    assert (plan.entries, plan.recipe, plan.flops_kept) == ((), "delayed", 1.0)
