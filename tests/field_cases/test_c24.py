"""C24: a filter for the first and the last layer that matches nothing; all layers were converted without a word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import fp8debug
from fp8debug.analysis.diagnosis import diagnose
from fp8debug.errors import UsageError
from fp8debug.hooks.autoattach import AutoAttach, StopBeforeTraining
from fp8debug.settings import load_options


class Wrapper(nn.Module):
    """What DistributedDataParallel makes of the names."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.module(x)
        return y


def model() -> nn.Module:
    return Wrapper(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)))


# Where a script is meant, models of other tests that still live count as its own: hence prefixes such as Wrapper#0.
def matched(run: Path) -> list[str]:
    return [layer["name"] for layer in json.loads((run / "run.json").read_text())["layers"] if layer["matched"]]


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    rows = [row for part in sorted(run.glob("events/rank=0/*.parquet")) for row in pq.read_table(part).to_pylist()]
    return [row for row in rows if row["kind"] == kind]


def test_exclusions_meant_for_the_bare_names_work_on_the_wrapped_model(tmp_path: Path) -> None:
    with fp8debug.attach(model(), exclude="^0$|^4$", run_dir=tmp_path / "run", engine="torch", quiet=True):
        pass
    assert matched(tmp_path / "run") == ["2"]


NOTHING: dict[str, tuple[dict[str, Any], str]] = {
    "names that are not there": (
        {"exclude": "^(first|last)$"},
        r"--exclude '\^\(first\|last\)\$' matches none of the \d+ GEMM layers.*nearest names: (\S+\.)?0, ",
    ),
    "wrapped names": (
        {"exclude": ["^module.0$", "^module.4$"]},
        r"none of the \d+ .*would match 'module\.0', but names are told without module\..*: '(\S+\.)?0'",
    ),
    "names wrapped otherwise": ({"exclude": r"_orig_mod\.2"}, r"would match '(\S+\.)?_orig_mod\.2', but"),
    "a capture pattern": (
        {"layers": r"decoder\..*"},
        r"--layers 'decoder\\\.\.\*' matches none of the \d+ GEMM layers.*nearest names",
    ),
}


@pytest.mark.parametrize(("options", "message"), NOTHING.values(), ids=NOTHING)
def test_what_matches_nothing_is_refused_before_anything_is_written(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        fp8debug.attach(model(), **options, run_dir=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("options", "message"), NOTHING.values(), ids=NOTHING)
def test_what_matches_nothing_stops_a_script(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    captured = load_options({**options, "out": str(tmp_path / "run")}, environment={}, folder=tmp_path)
    auto = AutoAttach(captured, command=[], script="x", say=print)
    auto.start()
    try:
        with pytest.raises(StopBeforeTraining, match=message) as stopped:
            model()(torch.ones(2, 4))
    finally:
        auto.close()
    assert stopped.value.exit_code == 2
    assert not (tmp_path / "run").exists()


def test_one_of_several_is_said_and_kept_as_an_event(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, net = tmp_path / "run", model()
    with fp8debug.attach(net, exclude=["^0$", r"module\.4"], keep_bf16="head", emulate="current", run_dir=run,
                         engine="torch") as session:  # fmt: skip
        for _ in range(2):
            net(torch.ones(2, 4)).sum().backward()
            session.step()
    line = next(line for line in capsys.readouterr().err.splitlines() if "matched 2 of 3" in line)
    said = r"--exclude 'module\.4' matches no layer (it would match 'module.4', but names are told without module., "
    assert said in line and "--keep-bf16 'head' matches no layer (nearest names: 0, 2, 4)" in line
    told = events(run, "unmatched_exclude")
    assert len(told) == 2
    assert all(row["message"] in line for row in told)
    with fp8debug.open_run(run) as opened:
        found = {one.severity: one for one in diagnose(opened) if one.rule == "unmatched_pattern"}
    assert found["error"].message.startswith("--keep-bf16 'head' matches no layer (nearest names: 0, 2, 4)")
    assert found["warning"].message.startswith(r"--exclude 'module\.4' matches no layer")


def test_a_file_that_serves_several_models_may_match_nothing(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('exclude = ["lm_head"]\n')
    config = str(tmp_path / "c.toml")
    options = load_options({"out": str(tmp_path / "run"), "engine": "torch"}, config_file=config, environment={})
    said: list[str] = []
    auto = AutoAttach(options, command=[], script="x", say=said.append)
    auto.start()
    try:
        model()(torch.ones(2, 4)).sum().backward()
    finally:
        auto.close()
    assert len(matched(tmp_path / "run")) >= 3
    (told,) = events(tmp_path / "run", "unmatched_exclude")
    assert told["message"].startswith("--exclude 'lm_head' matches no layer (nearest names: ")
    environment = {"FP8DEBUG_EXCLUDE": "lm_head"}
    assert load_options({}, config_file=config, environment=environment).exclude_must_match
    assert load_options({"exclude": ["lm_head"]}, config_file=config, environment={}).exclude_must_match


def test_the_command_ends_with_a_usage_error(tmp_path: Path, warm_python: Any) -> None:
    (tmp_path / "train.py").write_text("import torch\nprint(torch.nn.Linear(2, 2)(torch.ones(1, 2)).shape)\n")
    done = warm_python.run(tmp_path, "-m", "fp8debug", "attach", "--exclude", "lm_head", "train.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("fp8debug: --exclude 'lm_head' matches none of the 1 GEMM layers, so nothing would")
    assert not (tmp_path / "fp8debug-runs").exists()
