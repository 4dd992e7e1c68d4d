"""Curves from files of other tools: which column is which, what becomes of NaN and blanks, what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fp8debug.analysis.compare import Curve, compare, make_curve
from fp8debug.analysis.compare.columns import find_columns
from fp8debug.analysis.compare.sources import read_source
from fp8debug.errors import Fp8DebugError, UsageError


def read(tmp_path: Path, text: str | dict[str, Any] | list[Any], name: str = "curve.csv") -> Curve:
    file = tmp_path / name
    file.write_text(text if isinstance(text, str) else json.dumps(text))
    return read_source(file)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["step", "loss", "grad_norm", "lr", "tokens"], ["step", "loss", "grad_norm", "lr", "tokens"]),
        (["iteration", "lm loss", "grad norm", "learning rate", "consumed tokens"],
         ["iteration", "lm loss", "grad norm", "learning rate", "consumed tokens"]),
        (["trainer/global_step", "train/loss", "train/grad_norm", "train/learning_rate"],
         ["trainer/global_step", "train/loss", "train/grad_norm", "train/learning_rate"]),
        (["Step", "gpt fp8 - train/loss", "gpt fp8 - train/loss__MIN", "gpt fp8 - train/loss__MAX"],
         ["Step", "gpt fp8 - train/loss"]),
        (["Wall time", "Step", "Value"], ["Step", "Value"]),
        (["step", "val_loss", "loss", "eval_loss"], ["step", "loss"]),
        (["step", "validation loss", "loss_metrics/global_avg_loss"], ["step", "loss_metrics/global_avg_loss"]),
    ],
)  # fmt: skip
def test_spellings(names: list[str], expected: list[str]) -> None:
    assert list(find_columns(names).taken.values()) == expected


def test_csv_keeps_nan_and_infinity(tmp_path: Path) -> None:
    curve = read(tmp_path, "step,loss\n0,3\n1,nan\n2,inf\n3,2.5\n")
    np.testing.assert_array_equal(curve.loss, [3, math.nan, math.inf, 2.5])
    assert (curve.n_nonfinite, curve.kind) == (2, "csv")


def test_blank_losses(tmp_path: Path) -> None:
    """At the end, or beside a norm, a blank is a NaN; beside a validation loss it is a row of another kind."""
    text = "step,loss,grad_norm,val_loss\n0,3,1,\n0,,,3.1\n1,,5,\n2,2.9,1,\n3,,,\n4,,,\n"
    curve = read(tmp_path, text)
    np.testing.assert_array_equal(curve.steps, [0, 1, 2, 3, 4])
    np.testing.assert_array_equal(np.isnan(curve.loss), [False, True, False, True, True])
    assert curve.notes == ("3 blank losses are taken as NaN",)
    assert read(tmp_path, "step;loss\n0;3\n1;2,5\n2;2\n").steps.tolist() == [0, 2], "a decimal comma is no number"


def test_a_step_that_comes_twice_counts_as_written_last(tmp_path: Path) -> None:
    curve = read(tmp_path, "step\tloss\n0\t3\n1\t2\n2\tnan\n1\t2.5\n2\t2.4\n")
    assert (curve.steps.tolist(), curve.loss.tolist()) == ([0, 1, 2], [3, 2.5, 2.4])
    assert curve.notes == ("2 steps come more than once: the last entry counts",)


def test_running_sums_of_tokens_are_taken_apart(tmp_path: Path) -> None:
    curve = read(tmp_path, "step,loss,consumed_tokens\n10,3,1000\n20,2,2000\n30,1,3500\n")
    assert curve.tokens is not None
    np.testing.assert_array_equal(curve.tokens, [math.nan, 100, 150])


TRAINER_STATE = {
    "log_history": [
        {"step": 1, "loss": 3.0, "grad_norm": 2.0, "learning_rate": 1e-4, "epoch": 0.1},
        {"step": 1, "eval_loss": 3.2, "epoch": 0.1},
        {"step": 2, "loss": 2.9, "grad_norm": 1.0, "learning_rate": 1e-4, "epoch": 0.2},
        {"step": 2, "train_runtime": 5.0, "train_loss": 2.95},
    ]
}


@pytest.mark.parametrize(
    ("document", "name"),
    [
        (TRAINER_STATE, "trainer_state.json"),
        ([{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.9}], "list.json"),
        ({"steps": [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.9}]}, "steps.json"),
        ({"step": [1, 2], "loss": [3.0, 2.9]}, "columns.json"),
        ('{"step": 1, "train": {"loss": 3.0}}\n{"step": 2, "train": {"loss": 2.9}}\n{"step": 3, "tr', "log.jsonl"),
        ('{"config": {"lr": 1}}\n{"iteration": 1, "loss": 3.0}\n{"iteration": 2, "loss": 2.9}\n', "log2.jsonl"),
    ],
)
def test_json_in_its_usual_forms(tmp_path: Path, document: Any, name: str) -> None:
    curve = read(tmp_path, document, name)
    assert (curve.steps.tolist(), curve.loss.tolist()) == ([1, 2], [3.0, 2.9])


def test_json_may_hold_the_manifest_and_scores(tmp_path: Path) -> None:
    document = {
        "steps": [{"step": 0, "loss": 1.0}],
        "manifest": {"seed": 1, "fp8": {"on": True}},
        "evals": {"mmlu": 60},
    }
    curve = read(tmp_path, document, "curve.json")
    assert curve.facts == {"seed": "1", "fp8.on": "true"}
    assert curve.scores == {"mmlu": 60.0}
    (tmp_path / "curve.json.manifest.json").write_text('{"seed": 2, "evals": {"gsm8k": 70.5}}')
    assert read_source(tmp_path / "curve.json").facts == {"seed": "2", "fp8.on": "true"}
    assert read_source(tmp_path / "curve.json").scores == {"mmlu": 60.0, "gsm8k": 70.5}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step,val_loss\n0,1\n", "no column that is read as the training loss: it has step, val_loss"),
        ("step,loss\n0.5,1\n", "got '0.5' in column 'step'; expected whole steps"),
        ("step,loss\n", "has no rows"),
        ("", "has no rows"),
        ('{"a": {"b": 1}}', "holds no curve"),
        ('{"step": 0, "loss": 1}\nnonsense\n{"step": 1, "loss": 1}\n', "neither JSON nor JSON lines"),
    ],
)
def test_refusals(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("(", r"\(")):
        read(tmp_path, text)


def test_no_such_source(tmp_path: Path) -> None:
    with pytest.raises(Fp8DebugError, match="no such run or file"):
        read_source(tmp_path / "nothing.csv")
    with pytest.raises(UsageError, match="2 values of loss for 1 steps"):
        make_curve("curve", [0], [1.0, 2.0])


def test_steps_that_only_one_has_are_left_out() -> None:
    (pair,) = compare(make_curve("a", range(0, 40, 2), [1.0] * 20), [make_curve("b", range(40), [2.0] * 40)]).pairs
    assert (pair.gap.n_matched, pair.gap.absolute, pair.gap.relative) == (20, 1.0, 1.0)
    (pair,) = compare(make_curve("a", [0, 2], [1.0, 1.0]), [make_curve("b", [1, 3], [2.0, 2.0])]).pairs
    assert (pair.gap.n_matched, pair.gap.absolute, pair.verdict.word) == (0, None, "not_enough_evidence")


def test_a_run_directory(synthetic_run: ModuleType, tmp_path: Path) -> None:
    """Ranks are averaged, tokens added, the last score counts, and a skipped step's norm is no anomaly."""
    run = synthetic_run.SyntheticRun(tmp_path / "run", status="closed", world_size=2)
    for step, (loss, norm) in enumerate([(3.0, 1.0), (math.nan, math.inf), (2.0, 1.0)]):
        for rank in (0, 1):
            run.add_row("steps", step=step, rank=rank, loss=loss + rank, grad_norm=norm, tokens=10, skipped=step == 1)
    for step, score in ((1, 50.0), (2, 60.0)):
        run.add_row("evals", step=step, unix_s=float(step), task="mmlu", score=score)
    curve = read_source(run.write())
    np.testing.assert_array_equal(curve.loss, [3.5, math.nan, 2.5])
    assert curve.tokens is not None and curve.grad_norm_given is not None and curve.facts is not None
    assert (curve.tokens.tolist(), curve.grad_norm_given.tolist()) == ([20, 20, 20], [True, False, True])
    assert (curve.scores, curve.lr, curve.facts["world_size"]) == ({"mmlu": 60.0}, None, "2")


def test_a_run_directory_without_losses(synthetic_run: ModuleType, tmp_path: Path) -> None:
    run = synthetic_run.SyntheticRun(tmp_path / "run", status="closed")
    run.add_row("steps", step=0)
    with pytest.raises(Fp8DebugError, match="no loss was recorded"):
        read_source(run.write())
