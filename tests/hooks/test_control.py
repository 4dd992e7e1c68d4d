"""Changing one's mind while the training runs: what is asked for holds from the next step on, and is whole there."""

from __future__ import annotations

import itertools
import json
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fp8debug
from fp8debug.analysis.report import build_report
from fp8debug.analysis.whatif import record_sums
from fp8debug.cli.main import main
from fp8debug.control import Control, in_force, read_control, signature, write_control
from fp8debug.rundir import RunDir

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.hooks.conftest import Attach, Recorded, Zygote

_serials = itertools.count(1)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.a = nn.Linear(4, 5)
        self.b = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.b(self.a(x).relu())
        return y


class Training:
    """Steps of a small model; `ask` writes a control file by hand."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.model: nn.Module = Net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.step = 0

    def train(self, n_steps: int = 1) -> None:
        for _ in range(n_steps):
            x = torch.randn(6, 4, generator=torch.Generator().manual_seed(self.step))
            self.model(x).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.step += 1

    def ask(self, text: str | None = None, **options: Any) -> None:
        """A change in the middle of step `self.step`: it is followed when that step's optimizer has stepped."""
        serial = next(_serials)
        content = {"serial": serial, "written_unix_s": time.time()} | options
        if content.pop("raw_now", False):
            content["raw-now"] = serial
        (self.run / "control.json").write_text(json.dumps(content) if text is None else text)


@pytest.fixture
def training(tmp_path: Path) -> Training:
    return Training(tmp_path / "run")


def keys(recorded: Recorded, **cells: object) -> dict[int, str]:
    """Step → what was recorded in it."""
    found: dict[int, list[str]] = {}
    for row in recorded.rows("tensors", **cells):
        found.setdefault(row["step"], []).append(f"{row['layer']}.{row['tensor']}")
    return {step: " ".join(sorted(set(names))) for step, names in found.items()}


@pytest.mark.captures(
    case="changing one's mind",
    how="`fp8debug control RUN_DIR`, for unmodified scripts and attach(model); one stat call a step on each rank",
    sees="other layers, tensors, periods, details and raw values, from the next step on and whole there",
    limits="a file that cannot be followed: event control_refused, the old settings stay; histories of what was not "
    "recorded for a while are history_incomplete",
)
def test_layers_tensors_and_period(attach: Attach, recorded: Recorded, training: Training) -> None:
    with attach(training.model, layers="a", tensors="x,dy", every=1000):
        training.train(2)
        training.ask(layers=["b"], tensors=["x", "w", "dy"], every=2)
        training.train(3)
        training.ask(layers=[], tensors=["x", "w", "dy"], every=2)
        training.train(2)
    assert keys(recorded) == {
        **dict.fromkeys((0, 1, 2), "a.dy a.x"),
        **dict.fromkeys((3, 4, 5), "b.dy b.w b.x"),
        6: "a.dy a.w a.x b.dy b.w b.x",
    }
    sampled = {row["step"]: row["sampled"] for row in recorded.rows("steps")}
    assert [step for step in sampled if sampled[step]] == [0, 4, 6]
    assert keys(recorded, sampled=True).keys() == {0, 4, 6}
    status = {(r["step"], r["layer"]): r["status"] for r in recorded.rows("scales", tensor="x")}
    assert [status[step, "a"] for step in (0, 1, 2, 6)] == ["warmup", "ok", "ok", "history_incomplete"]
    assert status[6, "b"] == "ok"
    first, second = recorded.rows("events", kind="control")
    assert "layers b -> all" in second["message"]
    assert "layers a -> b; tensors x,dy -> x,w,dy; every 1000 -> 2" in first["message"]
    assert "1 layer no longer recorded (a)" in first["message"] and "from step 3 on" in first["message"]
    assert first["step"] == 2
    manifest = recorded.manifest
    assert manifest["tensors"] == ["x", "w", "dy"]
    assert [layer["matched"] for layer in manifest["layers"]] == [True, True]
    assert manifest["options"]["layers"] == []
    assert [c["layers_stopped"] for c in manifest["segments"][0]["changes"]] == [["a"], []]
    rank = json.loads((recorded.path / "rank=0.json").read_text())
    assert rank["control"] == {"serial": read_control(recorded.path / "control.json").serial, "step": 6}
    with fp8debug.open_run(recorded.path) as run:
        assert build_report(run).run.n_layers_matched == 2
        # Replayed offline, the history of a has the same gap.
        known = record_sums(run, ["delayed"], layer="^a$", tensors=["x"]).fetchall()
        assert {row[1] for row in known} == {0}


def test_raw_values_once(attach: Attach, recorded: Recorded, training: Training) -> None:
    with attach(training.model, every=1000, tensors="x"):
        training.train(2)
        training.ask(raw_now=True)
        training.train(3)
    assert {row["step"] for row in recorded.rows("values")} == {3}
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(3))
    values = [row["values"] for row in recorded.rows("values", layer="a")]
    np.testing.assert_array_equal(np.array(values, np.float32), x.numpy())
    assert keys(recorded, sampled=True).keys() == {0, 3}
    (event,) = recorded.rows("events")
    assert "from step 3 on: raw values of that step" in event["message"]


def test_dx_and_details_are_right_from_the_first_step(attach: Attach, recorded: Recorded, training: Training) -> None:
    """The input of b is that of nobody else, but of a model with a residual it would be: it has to be set apart."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x)
            y: Tensor = h + self.b(h)
            return y

    training.model = model = Residual()
    training.optimizer = torch.optim.SGD(training.model.parameters(), lr=0.1)
    with attach(training.model, detail="none", tensors="dy", raw_every=1):
        training.train(1)
        training.ask(tensors=["dy", "dx"], detail=["channels"])
        training.train(2)
        weight = model.b.weight.detach().clone()
        training.train(1)

    def values(tensor: str, step: int) -> np.ndarray[Any, Any]:
        return np.array([r["values"] for r in recorded.rows("values", layer="b", tensor=tensor, step=step)], np.float32)

    assert not recorded.rows("tensors", tensor="dx", step=1) and not recorded.rows("channels", step=1)
    assert recorded.rows("channels", step=2, layer="b", tensor="dx")
    np.testing.assert_allclose(values("dx", 3), values("dy", 3) @ weight.numpy(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("text", "options", "why"),
    [
        ("{", {}, "cannot be read as JSON"),
        ("[]", {}, "expected a JSON object"),
        (None, {"evry": 5}, "did you mean every"),
        (None, {"recipe": ["current"]}, "cannot be changed"),
        (None, {"every": 0}, "every: got 0; expected a whole number of at least 1"),
        (None, {"layers": ["("]}, "a regular expression"),
        (None, {"layers": ["nowhere"]}, "matches none of the 2 GEMM layers"),
        (None, {"tensors": ["q"]}, "is none of them"),
    ],
)
def test_what_cannot_be_followed_changes_nothing(
    attach: Attach, recorded: Recorded, training: Training, text: str | None, options: dict[str, Any], why: str
) -> None:
    with attach(training.model, every=2, tensors="x"):
        training.train(1)
        training.ask(text, **options)
        training.train(3)
    (event,) = recorded.rows("events")
    assert (event["kind"], event["step"]) == ("control_refused", 1) and why in event["message"]
    assert keys(recorded) == dict.fromkeys(range(4), "a.x b.x")
    assert keys(recorded, sampled=True).keys() == {0, 2}
    assert why in json.loads((recorded.path / "rank=0.json").read_text())["control"]["refused"]


def test_steps_by_hand_follow_too(attach: Attach, recorded: Recorded, training: Training) -> None:
    with attach(training.model, every=1000, tensors="x") as session:
        for step in range(4):
            training.model(torch.ones(2, 4)).sum().backward()
            if step == 1:
                training.ask(every=1)
            session.step()
    assert keys(recorded, sampled=True).keys() == {0, 2, 3}


def test_a_file_of_an_earlier_segment_is_not_followed(attach: Attach, recorded: Recorded, training: Training) -> None:
    training.run.mkdir()
    training.ask(every=1)
    with attach(training.model, every=1000, tensors="x", force=True) as session:
        (training.run / "control.json").write_text((training.run.with_name("run.old") / "control.json").read_text())
        session._control._seen = signature(training.run / "control.json")
        training.train(3)
    assert keys(recorded, sampled=True).keys() == {0}
    later = Control(serial=1, written_unix_s=time.time() + 5, options={"every": 7})
    write_control(training.run / "control.json", later)
    manifest = RunDir(training.run).read_manifest()
    assert in_force(training.run / "control.json", manifest).options == {"every": 7}
    write_control(training.run / "control.json", Control(serial=1, written_unix_s=5.0, options={"every": 7}))
    assert in_force(training.run / "control.json", manifest) == Control(serial=0)


def test_looking_costs_little(tmp_path: Path) -> None:
    """One stat call: far below a thousandth of any step."""
    path = tmp_path / "control.json"
    write_control(path, Control(serial=1))
    started = time.perf_counter()
    for _ in range(1000):
        signature(path)
    assert (time.perf_counter() - started) / 1000 < 1e-4


def test_an_unmodified_script_and_the_command_line(zygote: Zygote, tmp_path: Path, read_run: Callable[[Path], Recorded],
                                                   capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    run = tmp_path / "job" / "run"
    enough = tmp_path / "enough"
    options = {"every": 1000, "tensors": ("x",), "layers": ("a",)}
    zygote.start("patient", tmp_path / "job", environment={"ENOUGH": str(enough)}, **options)
    _wait_for((run / "rank=0.json").exists)
    assert main(["control", str(run), "--layers", "b", "--every", "1"]) == 0
    assert main(["control", str(run), "--tensors", "x,w", "--raw-now"]) == 0
    assert "control 2 written" in capsys.readouterr().err
    _wait_for(lambda: json.loads((run / "rank=0.json").read_text())["control"].get("serial") == 2)
    assert main(["control", str(run)]) == 0
    out = capsys.readouterr().out
    enough.touch()
    assert zygote.wait() == 0
    assert "control 2, written" in out and "every     1" in out and "rank 0    follows control 2 since step" in out
    recorded = read_run(run)
    last = max(row["step"] for row in recorded.rows("steps"))
    assert keys(recorded)[0] == "a.x" and keys(recorded)[last] == "b.w b.x"
    assert len({row["step"] for row in recorded.rows("values")}) == 1
    assert main(["control", str(run), "--every", "1"]) == 1
    assert "is not being recorded (status: closed)" in capsys.readouterr().err


WORKER = """
import os, sys, time, torch, fp8debug
from pathlib import Path
from torch import nn
torch.set_num_threads(1)
run, rank = Path(sys.argv[1]), int(os.environ["RANK"])
model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with fp8debug.attach(model, layers="0", every=1000, tensors="x", engine="torch", quiet=True, run_dir=run):
    while not (run / "enough").exists():
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.005)
"""


def test_every_rank_follows(tmp_path: Path, read_run: Callable[[Path], Recorded],
                            capsys: pytest.CaptureFixture[str], warm_python: Any) -> None:  # fmt: skip
    run = tmp_path / "run"
    (tmp_path / "worker.py").write_text(WORKER)
    ranks = warm_python.start_ranks(2, tmp_path, str(tmp_path / "worker.py"), str(run))
    try:
        _wait_for(lambda: all((run / f"rank={r}.json").exists() for r in (0, 1)))
        assert main(["control", str(run), "--layers", "1"]) == 0
        _wait_for(lambda: all(r.control for r in fp8debug.rundir.RunDir(run).read_ranks()))
        main(["control", str(run)])
        time.sleep(0.2)
    finally:
        (run / "enough").touch()
        assert [rank.wait().returncode for rank in ranks] == [0, 0]
    out = capsys.readouterr().out
    assert "rank 0    follows control 1" in out and "rank 1    follows control 1" in out
    for rank in (0, 1):
        found = list(keys(read_run(run), rank=rank).values())
        assert found[0] == "0.x" and found[-1] == "1.x"


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
