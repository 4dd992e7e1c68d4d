"""A model that serves: a step is one forward, evaluation passes are recorded whole and judged."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fp8debug
from fp8debug.analysis.report import build_report
from fp8debug.analysis.whatif import whatif
from fp8debug.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

    from tests.hooks.conftest import Attach, Recorded, Zygote


class Net(nn.Module):
    """Its second layer runs twice a forward."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.a = nn.Linear(32, 32, bias=False)
        self.b = nn.Linear(32, 32, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.b(self.b(self.a(x)))
        return y


def tokens(step: int) -> Tensor:
    """Activations that grow by a factor of two every two steps."""
    return torch.randn(16, 32, generator=torch.Generator().manual_seed(step)) * float(2 ** (step // 2))


@pytest.mark.captures(
    case="inference runs",
    how="--inference, or attach(model, inference=True); model.eval(), no_grad and inference_mode alike",
    sees="every evaluation pass, one step a forward of the model; w in sampled steps; static scales and their gap",
    limits="a script that never calls the model itself has to call session.step(); histories of delayed scaling do not "
    "move in evaluation, and stay in warm-up",
)
def test_a_step_is_one_forward(attach: Attach, recorded: Recorded) -> None:
    model = Net().bfloat16().eval()
    scale = 448 / float(tokens(0).bfloat16().abs().max())
    static = f"static:scale={scale},set_at_step=7"
    with attach(model, inference=True, every=2, recipes=["current", static], detail="channels"):
        for step in range(10):
            context = torch.inference_mode() if step % 2 else torch.no_grad()
            with context:
                model(tokens(step).bfloat16())
    x = recorded.rows("tensors", tensor="x")
    assert [(r["step"], r["layer"], r["call"], r["pass"], r["sampled"]) for r in x] == [
        (step, layer, call, "eval", step % 2 == 0)
        for step in range(10)
        for layer, call in (("a", 0), ("b", 0), ("b", 1))
    ]
    assert [r["step"] for r in recorded.rows("steps")] == list(range(10))
    assert {r["step"] for r in recorded.rows("tensors", tensor="w")} == {0, 2, 4, 6, 8}
    assert recorded.rows("channels", layer="a", tensor="x"), "details too"
    assert not recorded.rows("events")
    with fp8debug.open_run(recorded.path) as run:
        rows = run.sql(
            "select step, scale_gap_bits, set_at_step from tensor_errors "
            "where layer = 'a' and tensor = 'x' and recipe = $recipe order by step",
            recipe=static,
        ).fetchall()
        # What static scaling allows over what current scaling would do, from the tensors themselves.
        for step, gap, set_at in rows:
            amax = tokens(step).bfloat16().abs().max().item()
            assert (gap, set_at) == (pytest.approx(np.log2(scale / (448 / amax)), abs=1e-5), 7)
        report = build_report(run)
        assert report.run.inference
        assert report.verdict == "findings"
        found = next(f for f in report.candidates if (f.layer, f.tensor) == ("a", "x"))
        assert {v.recipe for v in found.verdicts if v.level == "candidate"} == {static}
        assert "gap" in found.worst.criteria
        assert not [p for p in report.problems if p.kind == "missing_tensor"]
        answer = whatif(run, ["current", static], layer="^a$", tensors=["x"])
        assert answer.steps == (0, 2, 4, 6, 8)
        lost = {entry.recipe: entry.overflow or 0.0 for entry in answer.operands}
        assert lost["current"] == 0 and lost[static] > 0


def test_the_report_says_so(attach: Attach, recorded: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    model = Net().bfloat16().eval()
    with attach(model, inference=True), torch.no_grad():
        for step in range(3):
            model(tokens(0).bfloat16() * (1 + step))
    assert main(["report", str(recorded.path)]) == 0
    assert "an inference run: a step is one forward" in capsys.readouterr().out
    main(["report", "--json", str(recorded.path)])
    report = json.loads(capsys.readouterr().out)
    assert report["run"]["inference"] is True
    (current,) = [entry for entry in report["judged"] if entry["recipe"] == "current"]
    assert (current["n_operands"], current["n_steps"]) == (4, 3), "x and w of both layers"


def test_steps_by_hand_and_no_root(attach: Attach, recorded: Recorded) -> None:
    """`session.step()` wins; what is never called itself ends no step."""
    model = Net().eval()
    with attach(model, inference=True) as session, torch.no_grad():
        for _ in range(2):
            model.b(model.a(tokens(0)))
        session.step()
        model(tokens(1))
        model(tokens(2))
    calls = [(r["step"], r["call"]) for r in recorded.rows("tensors", layer="a", tensor="x")]
    assert calls == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_without_the_option_evaluation_is_beside_the_point(attach: Attach, recorded: Recorded) -> None:
    model = Net().eval()
    with attach(model), torch.no_grad():
        for step in range(3):
            model(tokens(step))
    assert [(r["step"], r["call"]) for r in recorded.rows("tensors", layer="a")] == [(0, 0)], "the first pass alone"
    assert not recorded.rows("steps")
    with fp8debug.open_run(recorded.path) as run:
        assert run.sql("select count(*) from evidence").fetchall() == [(0,)]
        assert build_report(run).verdict == "not_enough_evidence"


def test_the_flight_recorder_serves_too(attach: Attach, recorded: Recorded) -> None:
    """An activation outlier, long after the last sampled step."""
    model = Net().eval()
    with attach(model, inference=True, every=1000, trigger="amax>16x", tensors="x"), torch.no_grad():
        for step in range(30):
            model(tokens(0) * (100 if step == 25 else 1))
    (event,) = recorded.rows("events", kind="trigger")
    assert (event["step"], event["tensor"]) == (25, "x")
    assert {r["step"] for r in recorded.rows("tensors", sampled=True)} == set(range(26))
    assert not recorded.rows("errors", step=26)


def test_an_unmodified_script(zygote: Zygote, tmp_path: Path, recorded: Recorded) -> None:
    facts = zygote.run("serving", tmp_path / "job", inference=True, every=1)
    run = type(recorded)(tmp_path / "job" / "run")
    assert [r["step"] for r in run.rows("steps")] == list(range(facts["n_forwards"]))
    assert {r["pass"] for r in run.rows("tensors")} == {"eval"}
