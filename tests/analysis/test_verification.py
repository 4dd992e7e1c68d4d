"""The verdict on a plan, from loss curves made here and from run directories."""

from __future__ import annotations

import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fp8debug.analysis.compare.curve import Curve, make_curve
from fp8debug.analysis.diagnosis import RuleBook, load_rules
from fp8debug.analysis.verification import Judgement, TrainedRun, judge, tail_gap, verify_runs
from fp8debug.plans import Plan, PlanEntry

STEPS = 200
BASE = 3.0 - 0.005 * np.arange(STEPS)
"""From 3 to 2: 2.12 at the middle of the last quarter."""


def curve(gap: float, *, noise: float = 0.01, seed: int = 0, until: int = STEPS) -> Curve:
    """The baseline with a gap that opens over the first half, and noise of its own."""
    opening = np.minimum(1.0, np.arange(STEPS) / (STEPS / 2))
    loss = BASE + gap * opening + noise * np.random.default_rng(seed).standard_normal(STEPS)
    return make_curve("made up", range(until), loss[:until])


def judged(recipe: float, plan: float, **options: Any) -> Judgement:
    base = curve(0.0)
    return judge(tail_gap(base, curve(recipe, seed=1)), tail_gap(base, curve(plan, seed=2)), **options)


@pytest.mark.parametrize(
    ("recipe", "plan", "verdict"),
    [
        (0.5, 0.05, "recovered"),
        (0.5, 0.0, "recovered"),
        (0.5, 0.2, "not_recovered"),
        (0.5, 0.7, "not_recovered"),
        (0.02, 0.0, "no_effect"),
        (0.02, 0.3, "plan_hurts"),
        (-0.4, 0.0, "no_effect"),
        (0.5, math.nan, "plan_hurts"),
        (math.nan, 0.0, "recipe_fails"),
        (math.nan, 0.5, "not_recovered"),
        (math.nan, math.nan, "not_recovered"),
    ],
)
def test_verdicts(recipe: float, plan: float, verdict: str) -> None:
    found = judged(recipe, plan)
    assert found.verdict == verdict
    assert found.is_helpful == (verdict in ("recovered", "no_effect", "recipe_fails"))


def test_the_share_is_of_the_gap() -> None:
    found = judged(0.5, 0.05)
    assert found.recovered == pytest.approx(0.9, abs=0.02)
    assert judged(0.5, 0.05, min_recovery=0.95).verdict == "not_recovered"
    assert judged(0.5, 0.7).recovered == pytest.approx(-0.4, abs=0.03)
    assert judged(0.02, 0.0).recovered is None


def test_a_gap_that_one_seed_cannot_tell_three_can() -> None:
    """Two hundredths of a loss of 2.12 are 0.042: below it only the spread of seeds tells a gap from drift."""
    assert judged(0.03, 0.0).noise.threshold == pytest.approx(0.02 * BASE[150:].mean(), rel=0.01)
    assert judged(0.03, 0.0, losses_of_seeds=(2.12, 2.122)).verdict == "no_effect"
    sharp = judged(0.03, 0.0, losses_of_seeds=(2.12, 2.122, 2.118))
    assert (sharp.verdict, sharp.noise.n_seeds) == ("recovered", 3)
    assert sharp.noise.spread == pytest.approx(0.002)
    blunt = judged(0.3, 0.0, losses_of_seeds=(2.0, 2.12, 2.3))
    assert blunt.verdict == "no_effect"
    assert blunt.noise.threshold == pytest.approx(3 * np.std([2, 2.12, 2.3], ddof=1))


def test_a_gap_that_scatters_too_much_is_not_enough_evidence() -> None:
    base, bumpy = curve(0.0), curve(0.0, seed=1)
    far = np.concatenate([bumpy.loss[:180], bumpy.loss[180:] + np.linspace(0, 2, 20)])
    tail = tail_gap(base, make_curve("bumpy", range(STEPS), far))
    assert tail.gap is not None and tail.error is not None and 0.1 < tail.gap < tail.error
    assert judge(tail, tail_gap(base, bumpy)).verdict == "unknown"


def test_the_gap_is_the_mean_of_the_last_quarter_without_spikes() -> None:
    base = curve(0.0, noise=0.0)
    loss = BASE + 0.1 + 1e-3 * (-1.0) ** np.arange(STEPS)
    loss[:150] += 5.0
    loss[160] += 9.0
    tail = tail_gap(base, make_curve("other", range(STEPS), loss))
    assert tail.gap == pytest.approx(0.1, abs=1e-4)
    assert (tail.first_step, tail.last_step, tail.n_steps, tail.n_far) == (150, 199, 50, 1)
    assert tail.error is not None and tail.error < 1e-3
    assert tail.curve[0][0] == 0 and tail.curve[0][1] == pytest.approx(5.1, abs=0.01)
    assert tail_gap(base, curve(0.5, until=20)).n_steps == 16


def test_too_few_steps_are_not_enough_evidence() -> None:
    base, other = curve(0.0, until=12), curve(0.5, seed=1, until=12)
    assert judge(tail_gap(base, other), tail_gap(base, base)).verdict == "unknown"
    nothing = make_curve("nan", range(STEPS), [math.nan] * STEPS)
    assert judge(tail_gap(nothing, curve(0.1)), tail_gap(nothing, curve(0.0))).verdict == "unknown"


PLAN = Plan("delayed", (PlanEntry("hurt", "bf16"), PlanEntry("changed", "mxfp8", "x"), PlanEntry("gone", "bf16")))


def trained(folder: Path, synthetic_run: ModuleType, gap: float, name: str, **facts: Any) -> TrainedRun:
    """A run whose layers `hurt`, `changed` and `still` have an x that delayed scaling clips."""
    run = synthetic_run.SyntheticRun(folder / name, layers=[synthetic_run.layer_info(layer) for layer in LAYERS])
    generator = np.random.default_rng(0)
    for step in range(40):
        loss = float(2 + gap + 1e-3 * generator.standard_normal())
        run.add_row("steps", segment=0, step=step, rank=0, loss=loss, grad_norm=float(1 + gap))
        if step % 4 == 0:
            for layer in LAYERS:
                x = synthetic_run.as_bfloat16(generator.standard_normal((32, 32)).astype(np.float32))
                scale = 448 / np.abs(x).max() * (1 if layer == "fine" else 8)
                run.add(layer, "x", x, step=step, scales=(synthetic_run.ForcedScale(scale),), with_current=False)
    run.write()
    return TrainedRun(
        name if name in ("bf16", "recipe", "plan") else "seed", folder / name, facts.pop("seed", 0), **facts
    )


LAYERS = ("hurt", "changed", "still", "fine")


def test_runs_become_a_record(tmp_path: Path, synthetic_run: ModuleType) -> None:
    runs = [
        trained(tmp_path, synthetic_run, 0.0, "bf16"),
        trained(tmp_path, synthetic_run, 0.0, "bf16-seed-1", seed=1),
        trained(tmp_path, synthetic_run, 0.4, "recipe", wall_s=2.5),
        trained(tmp_path, synthetic_run, 0.02, "plan"),
    ]
    clipping = RuleBook((load_rules()["clipping"],))
    verified = verify_runs(runs, PLAN, plan_file="plan.toml", rules=clipping)
    assert verified.judgement.verdict == "recovered"
    assert verified.judgement.recovered == pytest.approx(0.95, abs=1e-3)
    recipe, plan = verified.of("recipe"), verified.of("plan")
    assert recipe.loss == pytest.approx(2.4, abs=1e-3) and recipe.grad_norm == pytest.approx(1.4)
    assert recipe.tail is not None and recipe.tail.gap == pytest.approx(0.4)
    assert verified.of("bf16").exposed == ()  # measured under the recipe, not computed with it
    assert {found.layer for found in recipe.exposed} == {"hurt", "changed", "still"}
    assert {found.layer for found in plan.exposed} == {"still"}
    assert {found.layer for found in verified.resolved} == {"hurt", "changed"}
    assert {found.layer for found in verified.remaining} == {"still"}
    assert verified.new == ()
    assert "the script seeds itself: write {seed} where" in verified.notes[0]
    assert verified.notes[1].endswith("since the model has none of that name: gone")
    assert (verified.layers_in_bf16, verified.plan_layers) == (("hurt",), ("hurt", "changed"))


def test_a_run_that_stopped_has_broken_down(
    tmp_path: Path, synthetic_run: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fp8debug.analysis.verification.verify.exposed", lambda run, used, rules: ())
    runs = [
        trained(tmp_path, synthetic_run, 0.0, "bf16"),
        trained(tmp_path, synthetic_run, 0.0, "recipe", exit_code=1),
        trained(tmp_path, synthetic_run, 0.0, "plan"),
    ]
    verified = verify_runs(runs, PLAN)
    assert verified.judgement.verdict == "recipe_fails"
    assert verified.notes[0] == "the recipe's run ended with exit code 1 after 40 of 40 steps"
