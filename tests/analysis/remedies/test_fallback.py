"""The smallest set on a run whose noise and FLOPs can be worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from fp8debug.analysis import Run, open_run
from fp8debug.analysis.remedies import fallback, plan_of
from fp8debug.analysis.remedies.noise import gemm_flops, layer_noise
from fp8debug.errors import Fp8DebugError, UsageError
from fp8debug.plans import PlanEntry, plan_text, read_plan
from fp8debug.recipes import parse_recipe

if TYPE_CHECKING:
    from pathlib import Path

    from tests.analysis.remedies.conftest import Courses

TOKENS, N_STEPS = 16, 3
SIZES = {"a": (64, 32), "b": (32, 128), "c": (64, 64)}
NOISE_DB = {"a": (10, 20, 30), "b": (30, 30, 30), "c": (24, 24, 24)}
"""Of fprop, dgrad and wgrad."""


@pytest.fixture(scope="module")
def run(new_courses: Callable[..., Courses]) -> Iterator[Run]:
    courses = new_courses("current")
    for layer, (k, n) in SIZES.items():
        for step in range(N_STEPS):
            seq = courses.run.add(layer, "x", courses.bell((TOKENS, k)), step=step, sampled=step == 0)
            courses.run.add(layer, "w", courses.bell((n, k)), step=step, sampled=step == 0)
            courses.run.add(layer, "dy", courses.bell((TOKENS, n)), step=step, sampled=step == 0)
            # Sums of squares add up over records: 3 + 1 = 4 times the noise of a fourth of the signal.
            for share in (0.75, 0.25):
                for gemm, db in zip(("fprop", "dgrad", "wgrad"), NOISE_DB[layer], strict=True):
                    courses.run.add_detail("gemms", seq, gemm=gemm, recipe="current", fmt="E4M3", other_fmt="E4M3",
                                           alternate=False, accumulation="exact", n=9, n_nonfinite=0, sum_y2=1.0,
                                           sum_err2=share * 10 ** (-db / 10), sum_x2w2=share)  # fmt: skip
    with open_run(courses.run.write(), threads=1) as opened:
        yield opened


def nsr(db: float) -> float:
    return 10 ** (-db / 10)


FLOPS = {layer: 2 * TOKENS * k * n * N_STEPS for layer, (k, n) in SIZES.items()}
"""Of each of its three GEMMs, which are of equal cost."""
LAYER_NSR = {layer: sum(map(nsr, dbs)) / 3 for layer, dbs in NOISE_DB.items()}


def test_flops_by_hand(run: Run) -> None:
    assert gemm_flops(run) == {layer: dict.fromkeys(("fprop", "dgrad", "wgrad"), FLOPS[layer]) for layer in SIZES}


def test_noise_of_a_layer_is_the_mean_over_its_gemms(run: Run) -> None:
    for entry in layer_noise(run, parse_recipe("current")):
        assert entry.nsr == pytest.approx(LAYER_NSR[entry.layer])
        assert entry.flops == 3 * FLOPS[entry.layer]
        assert entry.is_measured


def test_a_target_takes_the_noisiest_first(run: Run) -> None:
    total = sum(FLOPS.values())
    before = sum(FLOPS[layer] * LAYER_NSR[layer] for layer in SIZES) / total
    after = sum(FLOPS[layer] * LAYER_NSR[layer] for layer in "bc") / total
    answer = fallback(run, 25.0)
    assert (answer.layers, answer.reached, answer.recipe, answer.note) == (("a",), True, "current", "")
    assert answer.sqnr_db_before == pytest.approx(-10 * math.log10(before))
    assert answer.sqnr_db_after == pytest.approx(-10 * math.log10(after))
    # 64 x 32 of 64 x 32 + 32 x 128 + 64 x 64.
    assert answer.flops_in_bf16 == pytest.approx(0.2)
    assert answer.flops_kept == pytest.approx(0.8)
    assert [entry.layer for entry in answer.noise] == ["a", "c", "b"]
    assert fallback(run, 10.0).layers == ()
    assert fallback(run, 60.0).layers == ("a", "c", "b")
    assert fallback(run, 60.0).sqnr_db_after is None


def test_a_budget_takes_what_it_pays_for(run: Run) -> None:
    # b and c cost 40 % each, a 20 %.
    assert fallback(run, budget=0.1).layers == ()
    assert fallback(run, budget=0.2).layers == ("a",)
    assert fallback(run, budget=0.6).layers == ("a", "c")
    limited = fallback(run, 60.0, budget=0.6)
    assert (limited.layers, limited.reached) == (("a", "c"), False)
    assert limited.note == "60 dB cannot be had for 60 % of the GEMM FLOPs"
    assert fallback(run, 25.0, budget=0.6).layers == ("a",)


def test_what_was_not_measured_is_estimated_from_both_operands(run: Run) -> None:
    # Bell shapes at a perfect scale: 31.5 dB in E4M3, 25.6 dB in E5M2, which dgrad and wgrad read dy in.
    answer = fallback(run, 20.0, recipe="current:power_of_two=true")
    assert answer.note == "results of all layers are estimated from their operands"
    mean = (2 * nsr(31.5) + 2 * (nsr(31.5) + nsr(25.6))) / 3
    assert answer.sqnr_db_before == pytest.approx(-10 * math.log10(mean), abs=0.7)


def test_bad_wishes_are_refused_with_words(run: Run) -> None:
    with pytest.raises(UsageError, match="needs a target"):
        fallback(run)
    with pytest.raises(UsageError, match="budget is 5; expected a share"):
        fallback(run, budget=5)
    with pytest.raises(Fp8DebugError, match=r"nothing is known of the GEMMs .* under mxfp8; record"):
        fallback(run, 25.0, recipe="mxfp8")


def test_the_plan_of_a_fallback(run: Run, tmp_path: Path) -> None:
    plan = plan_of(run, (), fallback(run, 25.0))
    db = -10 * math.log10(LAYER_NSR["a"])
    assert plan.entries == (PlanEntry("a", "bf16", reason=f"its GEMMs keep {db:.1f} dB."),)
    assert (plan.recipe, plan.run) == ("current", "synthetic")
    assert plan.flops_kept == pytest.approx(0.8)
    (tmp_path / "plan.toml").write_text(plan_text(plan), encoding="utf-8")
    assert read_plan(tmp_path / "plan.toml") == plan
