"""What sets two trainings apart: what counts, what is the experiment, what does not matter."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fp8debug.analysis.compare import compare, make_curve
from fp8debug.analysis.compare.differences import Comparability, comparability
from fp8debug.analysis.compare.setup import arguments_by_name, script_and_arguments

STEPS = range(4)
LOSS = [3.0, 2.9, 2.8, 2.7]


def between(first: Mapping[str, str] | None, second: Mapping[str, str] | None, **series: Any) -> Comparability:
    ours = {name: values[0] for name, values in series.items()}
    theirs = {name: values[1] for name, values in series.items()}
    return comparability(
        make_curve("a", STEPS, LOSS, facts=first, **ours), make_curve("b", STEPS, LOSS, facts=second, **theirs)
    )


@pytest.mark.parametrize(
    ("name", "first", "second", "kind"),
    [
        ("seed", "1", "2", "unintended"),
        ("seed", "0", "1", "unintended"),
        ("torch_version", "2.12", "2.13", "unintended"),
        ("cpu_offload", "false", "true", "unintended"),
        ("fp8_param_gather", "false", "true", "unintended"),
        ("model.fp8_params", "0", "1", "unintended"),
        ("recompute", "none", "full", "unintended"),
        ("data_path", "c4", "pile", "unintended"),
        ("fp8", "false", "true", "intended"),
        ("precision", "bf16", "fp8", "intended"),
        ("fp8_recipe.amax_history_len", "1", "16", "intended"),
        ("argument --fp8-format", "e4m3", "hybrid", "intended"),
        ("run_name", "a", "b", "note"),
        ("output_dir", "x", "y", "note"),
        ("argument --steps", "100", "200", "note"),
    ],
)
def test_kinds(name: str, first: str, second: str, kind: str) -> None:
    found = between({name: first, "lr": "1"}, {name: second, "lr": "1.0"})
    (difference,) = found.differences
    assert (difference.baseline, difference.run, difference.kind) == (first, second, kind)
    assert found.level == ("one_difference" if kind == "unintended" else "comparable")
    assert found.same == ("learning rate",)


def test_two_differences_are_too_many() -> None:
    found = between({"seed": "1", "cpu_offload": "false"}, {"seed": "2", "cpu_offload": "true", "fp8": "true"})
    assert found.level == "not_comparable"
    assert [difference.kind for difference in found.differences] == ["unintended", "unintended", "intended"]


def test_off_and_not_given_are_the_same_but_on_is_not() -> None:
    assert between({"cpu_offload": "false"}, {}).level == "comparable"
    assert between({}, {"cpu_offload": "true"}).level == "one_difference"


def test_of_two_bare_curves_nothing_is_known() -> None:
    assert between(None, None).level == "unknown"
    assert between(None, {"seed": "1"}).level == "unknown"


def test_one_cause_is_one_difference() -> None:
    found = between({"learning_rate": "1e-3", "batch_size": "8"}, {"lr": "2e-3", "global_batch_size": "16"},
                    lr=([1e-3] * 4, [2e-3] * 4), tokens=([8.0] * 4, [16.0] * 4))  # fmt: skip
    assert [difference.name for difference in found.unintended] == ["learning rate", "tokens a step"]


def test_learning_rates_are_compared_step_by_step() -> None:
    found = between(None, None, lr=([1e-3, 2e-3, 3e-3, 4e-3], [1e-3, 2e-3, 2.5e-3, 4e-3]))
    (difference,) = found.differences
    assert (difference.baseline, difference.run) == ("0.003 at step 2", "0.0025")
    assert between(None, None, lr=([1e-3] * 4, [1e-3 * (1 + 1e-9)] * 4)).same == ("learning rate",)


def test_a_shorter_run_is_told_and_does_not_count() -> None:
    found = comparability(make_curve("a", [0, 1, 2], LOSS[:3], facts={}), make_curve("b", [1, 2], LOSS[1:3], facts={}))
    assert [(d.name, d.kind) for d in found.differences] == [("steps", "note"), ("first step", "note")]
    assert found.level == "comparable"


# Run directories ------------------------------------------------------------------------------------------------------


def write(synthetic_run: ModuleType, path: Path, *, scale: float = 1.0, checksum: int = 7, **manifest: Any) -> Path:
    run = synthetic_run.SyntheticRun(path, status="closed", **manifest)
    run.add_row("steps", step=0, loss=2.0, lr=1e-3)
    run.add("fc", "x", np.linspace(-3, 3, 64, dtype=np.float32) * np.float32(scale), step=0, checksum=checksum)
    written: Path = run.write()
    return written


@pytest.mark.parametrize(
    ("other", "level", "name"),
    [
        ({}, "comparable", None),
        ({"options": {"emulate": "current"}}, "comparable", "emulate"),
        ({"versions": {"torch": "2.13", "fp8debug": "9"}}, "comparable", "versions.fp8debug"),
        ({"versions": {"torch": "2.14"}}, "one_difference", "versions.torch"),
        ({"git_commit": "b"}, "one_difference", "git_commit"),
        ({"world_size": 8}, "one_difference", "world_size"),
        ({"checksum": 8}, "comparable", "last bits of the first input"),
        ({"checksum": 8, "scale": 1.5}, "one_difference", "data or initial weights (first input)"),
    ],
)
def test_run_directories(
    synthetic_run: ModuleType, tmp_path: Path, other: dict[str, Any], level: str, name: str | None
) -> None:
    usual: dict[str, Any] = {"git_commit": "a", "versions": {"torch": "2.13", "fp8debug": "1"}}
    paths = [write(synthetic_run, tmp_path / "a", **usual), write(synthetic_run, tmp_path / "b", **{**usual, **other})]
    (pair,) = compare(paths[0], [paths[1]]).pairs
    assert pair.comparability.level == level
    assert [difference.name for difference in pair.comparability.differences] == ([name] if name else [])
    if not name:
        assert pair.comparability.same == (
            "learning rate", "versions.torch", "world_size", "git_commit", "script",
            "first input (data and initial weights)",
        )  # fmt: skip


@pytest.mark.parametrize(
    ("command", "script", "arguments"),
    [
        (["train.py", "--lr", "1"], "train.py", ["--lr", "1"]),
        (["fp8debug", "attach", "--every", "5", "-q", "a/train.py", "--lr", "1"], "a/train.py", ["--lr", "1"]),
        (["fp8debug", "attach", "-m", "pkg.train", "x"], "pkg.train", ["x"]),
        (["/venv/bin/fp8debug", "attach", "--emulate", "current", "train.py"], "train.py", []),
        ([], None, []),
    ],
)
def test_script_of_a_command(command: list[str], script: str | None, arguments: list[str]) -> None:
    assert script_and_arguments(command) == (script, arguments)


def test_arguments_by_name() -> None:
    assert arguments_by_name(["--lr=1e-3", "--seed", "0", "--fp8", "--shift", "-1.5", "data"]) == {
        "argument --lr": "1e-3",
        "argument --seed": "0",
        "argument --fp8": "yes",
        "argument --shift": "-1.5",
        "arguments": "data",
    }
