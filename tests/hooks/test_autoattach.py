"""Unmodified scripts: what is found, listed, refused, and what happens when finding breaks."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
import torch

from fp8debug.config import CaptureOptions
from fp8debug.errors import Fp8DebugError, UsageError
from fp8debug.hooks.autoattach import AutoAttach

if TYPE_CHECKING:
    from tests.hooks.conftest import Recorded, Zygote


def bare(trainings: ModuleType, name: str) -> object:
    """Losses of the training without us."""
    torch.manual_seed(0)
    return getattr(trainings, name)(lambda model: None)["losses"]


def test_models_that_share_an_encoder(
    zygote: Zygote, read_run: Callable[[Path], Recorded], trainings: ModuleType, tmp_path: Path
) -> None:
    """The shared layer is hooked once, under the smaller of the models that hold it."""
    facts = zygote.run("shared_encoder", tmp_path / "a")
    run = read_run(tmp_path / "a/run")
    assert facts["losses"] == bare(trainings, "shared_encoder")
    assert [layer["name"] for layer in run.manifest["layers"]] == ["0", "1", "Sequential#1.1", "Sequential#1.2"]
    assert run.manifest["roots"] == ["Sequential", "Sequential#1"]
    assert run.keys() == [
        *("0/0/0 forward 0.x", "0/0/0 forward 0.w", "0/0/0 forward 1.x", "0/0/0 forward 1.w"),
        *("0/0/0 backward 1.dy", "0/0/0 backward 0.dy", "1/0/0 forward 0.x", "1/0/0 forward 0.w"),
        *(f"1/0/0 forward Sequential#1.{tensor}" for tensor in ("1.x", "1.w", "2.x", "2.w")),
        *("1/0/0 backward Sequential#1.2.dy", "1/0/0 backward Sequential#1.1.dy", "1/0/0 backward 0.dy"),
    ]


@pytest.mark.parametrize("engine", ["torch", "numba"])
def test_a_model_that_runs_inside_a_transform(
    engine: str, zygote: Zygote, read_run: Callable[[Path], Recorded], trainings: ModuleType, tmp_path: Path
) -> None:
    """What is made when a model is found, such as tables of codes, must not be made under the transform."""
    facts = zygote.run("inside_a_transform", tmp_path / "a", engine=engine)
    run = read_run(tmp_path / "a/run")
    assert facts["losses"] == bare(trainings, "inside_a_transform")
    by_hand = "no optimizer stepped, so 2 micro-batches count as one step: call session.step() after each step"
    assert facts["problems"] == [by_hand]
    assert {(row["layer"], row["tensor"]) for row in run.rows("tensors")} == {
        (a, t) for a in "ab" for t in ("x", "w", "dy")
    }


def test_models_that_are_found_by_two_threads_at_once(
    zygote: Zygote, read_run: Callable[[Path], Recorded], trainings: ModuleType, tmp_path: Path
) -> None:
    facts = zygote.run("two_threads", tmp_path / "a")
    assert facts["losses"] == bare(trainings, "two_threads")
    assert (facts["problems"], len(facts["said"])) == ([], 2)
    fired = {(row["layer"], row["tensor"]) for row in read_run(tmp_path / "a/run").rows("tensors")}
    assert fired == {(f"Net#{n}.{layer}", tensor) for n in (0, 1) for layer in "ab" for tensor in ("x", "w", "dy")}


def test_a_model_that_comes_later(zygote: Zygote, read_run: Callable[[Path], Recorded], tmp_path: Path) -> None:
    """Found when an optimizer shows up whose parameters belong to nothing known: one step late."""
    facts = zygote.run("second_model_later", tmp_path / "a")
    run = read_run(tmp_path / "a/run")
    assert {layer["name"] for layer in run.manifest["layers"]} == {
        "a",
        "b",
        "SelfTraining#1.body.0",
        "SelfTraining#1.head",
    }
    x = [key.split()[0] for key in run.keys() if key.endswith("SelfTraining#1.head.x")]  # noqa: SIM118
    assert x == ["3/0/0"]
    assert facts["said"][1:] == [f"fp8debug: matched {n} of {n} GEMM layers" for n in (2, 4)]


def test_parameters_without_layers_are_no_model(
    zygote: Zygote, read_run: Callable[[Path], Recorded], tmp_path: Path
) -> None:
    facts = zygote.run("parameters_without_layers", tmp_path / "a")
    assert [layer["name"] for layer in read_run(tmp_path / "a/run").manifest["layers"]] == ["a", "b"]
    assert facts["said"][1:] == ["fp8debug: matched 2 of 2 GEMM layers"]


def test_a_teacher_that_was_not_asked_for_runs_first(
    zygote: Zygote, read_run: Callable[[Path], Recorded], tmp_path: Path
) -> None:
    facts = zygote.run("distillation", tmp_path / "a", layers=["^Student"])
    run = read_run(tmp_path / "a/run")
    assert facts["said"][1:] == ["fp8debug: matched 2 of 4 GEMM layers"]
    assert {row["layer"] for row in run.rows("tensors")} == {"Student#1.a", "Student#1.b"}


@pytest.mark.parametrize("name", ["criteria", "gan"])
def test_nothing_is_looked_for_once_the_training_runs(name: str, zygote: Zygote, tmp_path: Path) -> None:
    assert zygote.run(name, tmp_path / "a")["still_found"] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": ["zz"]}, "--layers 'zz' matches none of the 2 GEMM layers (exclude applied); nearest names: a, b;"),
        ({"exclude": ["."]}, "--exclude leaves none of the 2 GEMM layers; loosen it (first layer: a)"),
    ],
)
def test_a_regex_that_takes_nothing_stops_the_script(
    options: dict[str, list[str]], message: str, zygote: Zygote, tmp_path: Path
) -> None:
    facts = zygote.run("wrapped", tmp_path / "a", **options)
    assert facts["exit_code"] == 2
    assert facts["message"].startswith(message)
    assert not (tmp_path / "a/run").exists()
    assert facts["problems"] is None


def test_list_layers(zygote: Zygote, tmp_path: Path) -> None:
    facts = zygote.run("learnt_criterion", tmp_path / "a", list_layers=True, layers=["a$", "score"])
    assert facts["shown"] == ["+ Net#0.a  Linear 4x5", "- Net#0.b  Linear 5x3", "+ Scorer#1.score  Linear 3x1"]
    assert (facts["exit_code"], facts["message"]) == (0, "fp8debug: matched 2 of 3 GEMM layers")
    assert not (tmp_path / "a/run").exists()


def test_list_layers_without_a_match(zygote: Zygote, tmp_path: Path) -> None:
    facts = zygote.run("wrapped", tmp_path / "a", list_layers=True, layers=["zzz"])
    assert facts["shown"] == ["- a  Linear 4x5", "- b  Linear 5x3"]
    assert facts["exit_code"] == 2


def test_a_bug_of_ours_in_finding(zygote: Zygote, trainings: ModuleType, tmp_path: Path) -> None:
    facts = zygote.run("finder_breaks", tmp_path / "a")
    assert facts["losses"] == bare(trainings, "method")
    (line,) = facts["said"]
    assert (
        line == "fp8debug: disabled before the first step, the training goes on (IndexError: list index out of range)"
    )
    assert facts["still_found"] == 0


def test_a_directory_taken_between_start_and_first_step(tmp_path: Path) -> None:
    """The script runs on; nothing is written into what is somebody else's."""
    said: list[str] = []
    auto = AutoAttach(CaptureOptions(out=str(tmp_path / "run"), engine="torch"), command=[], script="", say=said.append)
    auto.start()
    try:
        (tmp_path / "run").mkdir()
        (tmp_path / "run/mine").touch()
        layer = torch.nn.Linear(2, 2)
        assert layer(torch.ones(1, 2)).shape == (1, 2)
        layer(torch.ones(1, 2))
    finally:
        assert auto.close() is None
    (line,) = said
    assert re.match(
        r"fp8debug: disabled before the first step, the training goes on \(UsageError: .*is not empty", line
    )
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["mine"]
    assert not torch.nn.modules.module._global_forward_pre_hooks


def test_two_ranks_share_a_directory(zygote: Zygote, read_run: Callable[[Path], Recorded], tmp_path: Path) -> None:
    """Whichever comes first; the manifest is rank 0's, or another's where rank 0 has not come yet."""
    for rank in (1, 0):
        facts = zygote.run(
            "accumulation",
            tmp_path / str(rank),
            out=str(tmp_path / "run"),
            environment={"RANK": str(rank), "WORLD_SIZE": "2"},
        )
        assert facts["problems"] == []
        assert read_run(tmp_path / "run").manifest["segments"][0]["rank"] == rank
    run = read_run(tmp_path / "run")
    assert run.manifest["world_size"] == 2
    assert sorted(p.name for p in (tmp_path / "run").iterdir() if p.suffix) == [
        "rank=0.json",
        "rank=0.lock",
        "rank=1.json",
        "rank=1.lock",
        "run.json",
    ]
    per_rank = {rank: run.rows("tensors", rank=rank) for rank in (0, 1)}
    assert len(per_rank[0]) == len(per_rank[1]) == 2 * (6 + 4 + 4)
    assert [row["seq"] for row in per_rank[1]] == list(range(28))
    assert [row["rank"] for row in run.rows("steps")] == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"layers": ("(",)}, UsageError),
        ({"steps": "9-1"}, UsageError),
        ({"recipes": ("nvfp5",)}, UsageError),
        ({"out": "."}, Fp8DebugError),
    ],
)
def test_bad_options_are_refused_at_the_start(
    options: dict[str, str], error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "something").touch()
    auto = AutoAttach(CaptureOptions(**options), command=[], script="x.py", say=print)  # type: ignore[arg-type]
    with pytest.raises(error):
        auto.start()
    assert not torch.nn.modules.module._global_forward_pre_hooks
    assert [p.name for p in tmp_path.iterdir()] == ["something"]
