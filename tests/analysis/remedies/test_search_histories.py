"""Faults of delayed scaling: the search finds the change that the course of each tensor was made for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from fp8debug.analysis import open_run
from fp8debug.analysis.remedies import Remedy, search
from fp8debug.analysis.scope import Scope
from fp8debug.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.analysis.remedies.conftest import Courses

Outcomes = Callable[[Remedy], list[tuple[str, str, str]]]
Found = dict[str, Remedy]


@pytest.fixture(scope="module")
def simulated_path(new_courses: Callable[..., Courses]) -> Path:
    courses = new_courses("delayed")
    # Every 16th step is 2 bits larger than the 8 before it, which are all that the history knows.
    courses.follow("outgrows", [2 * (step % 16 == 0) for step in range(96)], range(32, 96, 16), length=8)
    # A spike of 7 bits, beyond any margin, is back after 12 steps: a window of 16 spans that, one of 4 does not.
    courses.follow("comes_back", [7 * (step % 12 == 0) for step in range(96)], range(36, 96, 12), length=4)
    # 18 bits smaller since step 20: at steps 60 to 80 a window of 64 still holds the old amax, one of 16 does not.
    courses.follow("has_shrunk", [18 if step < 20 else 0 for step in range(81)], (60, 70, 80))
    # 2 bits smaller each step: a window of 16 is 32 bits off, the last amax 2.
    courses.follow("shrinks", [60 - 2 * step for step in range(48)], range(20, 48, 5))
    # A spike of 18 bits every 10 steps spoils every window, and most_recent clips at each: 5 steps after the sampled.
    courses.follow("spikes_between", [18 * (step % 10 == 0) for step in range(200)], range(25, 200, 10))
    courses.follow("healthy", [0] * 40, range(20, 40, 5))
    return courses.run.write()


@pytest.fixture(scope="module")
def simulated(simulated_path: Path) -> Found:
    with open_run(simulated_path, threads=1) as run:
        found = search(run)
        # What is fine has no trials, and is left out unless it is asked for.
        (healthy,) = search(run, [("healthy", "x")])
        with pytest.raises(UsageError, match="healthy dw was not sampled in this run; nearest: healthy x"):
            search(run, [("healthy", "dw")])
    return {remedy.layer: remedy for remedy in (*found, healthy)}


def test_a_margin(simulated: Found, outcomes: Outcomes) -> None:
    remedy = simulated["outgrows"]
    assert (remedy.tensor, remedy.recipe) == ("x", "delayed:amax_history_len=8")
    assert remedy.present.scale_gap_bits == pytest.approx(2)
    # A margin of 1 leaves 1 bit. The rule for the gap allows that; half the largest value is 1.6 deviations, though,
    # and what is clipped there costs more than rounding.
    assert outcomes(remedy) == [
        ("margin", "delayed:amax_history_len=8,margin=1", "not_enough"),
        ("margin", "delayed:amax_history_len=8,margin=2", "fixes"),
    ]
    assert remedy.chosen is remedy.trials[1]
    assert [trial.scale_gap_bits for trial in remedy.trials] == pytest.approx([1, 0])
    assert (remedy.present.overflow or 0) > (remedy.trials[0].overflow or 0) > 0
    assert remedy.trials[1].overflow == 0


def test_a_longer_history(simulated: Found, outcomes: Outcomes) -> None:
    remedy = simulated["comes_back"]
    margins = [("margin", f"delayed:amax_history_len=4,margin={bits}", "not_enough") for bits in (1, 2, 3, 4)]
    assert outcomes(remedy) == [*margins, ("history", "delayed:amax_history_len=16", "fixes")]
    assert [trial.scale_gap_bits for trial in remedy.trials] == pytest.approx([6, 5, 4, 3, 0])


def test_a_shorter_history(simulated: Found, outcomes: Outcomes) -> None:
    remedy = simulated["has_shrunk"]
    assert remedy.present.scale_gap_bits == pytest.approx(-18)
    assert (remedy.present.underflow or 0) > 0.9
    assert outcomes(remedy) == [
        ("margin", "delayed:margin=1", "not_enough"),
        ("history", "delayed:amax_history_len=64", "not_enough"),
        ("history", "delayed:amax_history_len=16", "fixes"),
    ]
    assert remedy.trials[0].note == "nothing is clipped: a smaller scale cannot help"
    assert remedy.trials[2].scale_gap_bits == pytest.approx(0)


def test_most_recent(simulated: Found, outcomes: Outcomes) -> None:
    remedy = simulated["shrinks"]
    assert [kind for kind, _, _ in outcomes(remedy)] == ["margin", "history", "history", "most_recent"]
    assert outcomes(remedy)[-1] == ("most_recent", "delayed:amax_compute_algo=most_recent", "fixes")
    assert remedy.trials[-1].scale_gap_bits == pytest.approx(-2)


def test_what_would_clip_between_sampled_steps_does_not_fix(simulated: Found, outcomes: Outcomes) -> None:
    remedy = simulated["spikes_between"]
    assert outcomes(remedy)[3:] == [
        ("most_recent", "delayed:amax_compute_algo=most_recent", "not_enough"),
        ("format", "delayed:fp8_format=E5M2", "not_enough"),
        ("current", "current", "fixes"),
    ]
    # The first 16 passes are warm-up: spikes at 20, 30, ... 190 of the steps 16 to 199.
    assert remedy.trials[3].note == "its scale is too large in 18 of 184 steps, unsampled ones included"


def test_a_part_of_a_run_does_not_know_of_longer_histories(simulated_path: Path, outcomes: Outcomes) -> None:
    # Replayed from step 30 on, a window of 64 would look as short as one of 16.
    scope = Scope(layer="has_shrunk", steps=((30, None),))
    with open_run(simulated_path, threads=1, scope=scope) as run:
        (remedy,) = search(run)
    assert [(kind, outcome) for kind, _, outcome in outcomes(remedy)] == [
        ("margin", "not_enough"), ("history", "unknown"), ("history", "unknown"), ("most_recent", "fixes"),
    ]  # fmt: skip


def test_nothing_wrong_means_no_trials(simulated: Found) -> None:
    asked = simulated["healthy"]
    assert (asked.trials, asked.chosen, asked.present.outcome) == ((), None, "fine")
    assert len(simulated) == 6


def test_steps_that_are_wrong_without_a_histogram_prove_nothing(new_courses: Callable[..., Courses]) -> None:
    courses = new_courses("delayed")
    courses.follow("fc", [7 * (step % 12 == 0) for step in range(96)], range(20, 96), length=4)
    path = courses.run.write()
    part = courses.run.run_dir.part_path("histograms", 0, 0)
    kept = pq.read_table(part).filter(pc.field("seq").isin([step for step in range(96) if step % 12 == 5]))
    pq.write_table(kept, part)
    with open_run(path, threads=1) as run:
        (remedy,) = search(run)
    assert {trial.outcome for trial in remedy.trials[:-3]} == {"unknown"}
    assert remedy.trials[0].note == "no histogram of a step that is wrong"
    assert [trial.kind for trial in remedy.trials[-3:]] == ["block", "mxfp8", "layer_bf16"]


@pytest.fixture(scope="module")
def framework(new_courses: Callable[..., Courses]) -> Found:
    courses = new_courses("delayed", "current")
    courses.force("too_large", 1.2, 30)
    courses.force("frozen", -20, 30)
    # Under current scaling the result of fprop is noisy, and w is either fine or to blame itself.
    for layer, outlier in (("noisy_product", 1.0), ("noisy_weight", 2.0**20)):
        seq = courses.force(layer, -20, 30)
        w = courses.bell(seed=6)
        w[0, :8] *= outlier
        for step in (26, 27):
            courses.run.add(layer, "w", w, step=step)
            courses.run.add_detail("gemms", seq, step=step, gemm="fprop", recipe="current", fmt="E4M3",
                                   other_fmt="E4M3", alternate=False, accumulation="exact", n=64, n_nonfinite=0,
                                   sum_y2=1.0, sum_q2=1.0, sum_yq=1.0, sum_err2=10**-0.5, sum_x2w2=1.0)  # fmt: skip
    courses.force("four_times", 2, 30, recipe="current")
    with open_run(courses.run.write(), threads=1) as run:
        found = (*search(run), *search(run, [("four_times", "x")], recipe="current"))
    return {remedy.layer: remedy for remedy in found if remedy.tensor == "x"}


def test_a_margin_lowers_the_scale_that_the_framework_had(framework: Found, outcomes: Outcomes) -> None:
    # By its own recipe nothing would be wrong: the tensor never changes.
    remedy = framework["too_large"]
    assert remedy.present.scale_gap_bits == pytest.approx(1.2, abs=1e-6)
    assert outcomes(remedy) == [("margin", "delayed:margin=1", "fixes")]
    assert remedy.trials[0].scale_gap_bits == pytest.approx(0.2, abs=1e-6)


def test_a_scale_that_its_recipe_does_not_give_is_no_matter_of_history(framework: Found, outcomes: Outcomes) -> None:
    remedy = framework["frozen"]
    assert [(kind, outcome) for kind, _, outcome in outcomes(remedy)] == [
        ("margin", "not_enough"), ("history", "unknown"), ("history", "unknown"), ("most_recent", "unknown"),
        ("format", "not_enough"), ("current", "fixes"),
    ]  # fmt: skip
    assert remedy.trials[1].note.startswith("its scale is not what its recipe gives")
    # The frozen scale in the other format: as far off as before.
    assert remedy.trials[4].scale_gap_bits == pytest.approx(-20, abs=1e-6)


def test_a_bad_result_counts_unless_the_other_operand_is_to_blame(framework: Found) -> None:
    product = framework["noisy_product"].trials[5]
    # Two roundings at their worst, 24.6 dB each, leave 21.6 dB.
    assert (product.kind, product.outcome) == ("current", "not_enough")
    assert product.note == "result of fprop keeps 5.0 dB, should be above 21.6"
    weight = framework["noisy_weight"].trials[5]
    assert (weight.kind, weight.outcome) == ("current", "fixes")


def test_a_format_is_no_answer_to_a_current_scale_that_is_none(framework: Found, outcomes: Outcomes) -> None:
    remedy = framework["four_times"]
    assert remedy.present.note.startswith("scale 2.0 bits too large")
    assert outcomes(remedy)[0] == ("format", "current:fp8_format=E5M2", "unknown")
    assert remedy.chosen is not None
    assert remedy.chosen.kind == "layer_bf16"
