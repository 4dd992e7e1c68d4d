"""`fp8debug verify`: what is run, what is refused, what is said; the trainings themselves run in warmed processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from fp8debug.cli import verification
from fp8debug.cli.child import Ended, run_child
from fp8debug.cli.main import main
from fp8debug.plans import Plan, PlanEntry, plan_text

if TYPE_CHECKING:
    from tests.cli.conftest import Place

TRAIN = """
import sys
import torch
from torch import nn

if "fail" in sys.argv:
    print("no data", file=sys.stderr)
    sys.exit(9)
model = nn.Sequential(nn.Linear(128, 64), nn.GELU(), nn.Linear(64, 16))
channel = torch.ones(128)
channel[0] = 2.0**20  # exactly compensated in the weight, and kept so: FP8 alone feels it
with torch.no_grad():
    model[0].weight /= channel
model[0].weight.register_hook(lambda grad: grad * (channel == 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
target = torch.randn(128, 16)
for step in range(32):
    x = torch.randn(256, 128)
    loss = (model(x * channel) - x @ target).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("last", loss.item())
"""


@pytest.fixture
def folder(place: Place, monkeypatch: pytest.MonkeyPatch) -> Path:
    place.write("train.py", TRAIN)
    place.write("plan.toml", plan_text(Plan("current", (PlanEntry("0", "bf16"),))))
    monkeypatch.chdir(place.folder)
    return place.folder


Child = Callable[[Sequence[str], Mapping[str, str], Callable[[str], None]], Ended]


@pytest.fixture
def trainings_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[Child], None]:
    """Has the trainings run by a function of the test's."""
    return lambda child: monkeypatch.setattr(
        verification.Trainings.__init__, "__kwdefaults__", {"force": False, "child": child}
    )


@pytest.fixture
def in_warm_processes(folder: Path, warm_python: Any, trainings_by: Callable[[Child], None]) -> None:
    """Trainings run for real, in processes that have imported torch already."""

    def run(command: Sequence[str], variables: Mapping[str, str], show: Callable[[str], None]) -> Ended:
        ran = warm_python.run(folder, *command[1:], **variables)
        for line in (ran.stdout + ran.stderr).splitlines():
            show(line)
        return Ended(ran.returncode, tuple(ran.stderr.splitlines()))

    trainings_by(run)


@pytest.fixture
def commands(synthetic_run: ModuleType, trainings_by: Callable[[Child], None]) -> list[list[str]]:
    """The command lines, of which none is run: losses are made up, 1 above BF16 with the recipe, 0.9 with the plan."""
    seen: list[list[str]] = []

    def run(command: Sequence[str], variables: Mapping[str, str], show: Callable[[str], None]) -> Ended:
        seen.append(list(command[3:]))
        recorded = synthetic_run.SyntheticRun(Path(command[command.index("--out") + 1]))
        gap = 0.9 if "--plan" in command else 1.0 if "--emulate" in command else 0.0
        seed = int(command[command.index("--seed") + 1])
        for step in range(32):
            recorded.add_row("steps", segment=0, step=step, rank=0, loss=4 + gap + 1e-3 * (seed + step % 4))
        recorded.write()
        return Ended(0, ())

    trainings_by(run)
    return seen


@pytest.mark.usefixtures("in_warm_processes")
def test_a_plan_that_helps(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "train.py", "--plan", "plan.toml", "--out", "v"]) == 0
    out, err = capsys.readouterr()
    assert "fp8debug: 3 of 3: the run with the plan, seed 0\n" in err
    assert "plan | fp8debug: emulating current in 1 layer, 1 kept in high precision\n" in err
    assert out.startswith("VERIFY plan.toml: the plan recovers the loss\n  The plan recovers ")
    assert "\n  The plan keeps 0 in BF16.\n" in out
    assert "\nNO LONGER FOUND WITH THE PLAN (1 operand)\n  0 x\n" in out
    assert "\n  fp8debug compare v/bf16 v/recipe v/plan\n" in out
    assert max(map(len, out.splitlines())) <= 80


def test_what_is_run(folder: Path, commands: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--plan", "plan.toml", "--seeds", "3", "--seed", "5", "--out", "v", "--json", "-q"]
    assert main(["verify", *words, "train.py", "--of", "{seed}"]) == 3
    out, err = capsys.readouterr()
    common = ["attach", "--every", "20", "--detail", "none", "--recipe", "current", "--seed"]
    assert commands == [
        [*common, "5", "--out", "v/bf16", "train.py", "--of", "5"],
        [*common, "6", "--out", "v/bf16-seed-6", "train.py", "--of", "6"],
        [*common, "7", "--out", "v/bf16-seed-7", "train.py", "--of", "7"],
        [*common, "5", "--emulate", "current", "--out", "v/recipe", "train.py", "--of", "5"],
        [*common, "5", "--emulate", "current", "--plan", "plan.toml", "--out", "v/plan", "train.py", "--of", "5"],
    ]
    document = json.loads(out)
    assert (err, document["verdict"]) == ("", "not_recovered")
    assert document["recovered"] == pytest.approx(0.1)
    assert document["recipe_gap"] == pytest.approx(1.0)
    assert document["gap_over_spread"] == pytest.approx(1000)  # last losses 1e-3 apart
    assert [run["kind"] for run in document["runs"]] == ["bf16", "seed", "seed", "recipe", "plan"]
    assert document["sentence"].startswith("The plan recovers only 10 % of what current costs, at least 80 % was asked")


@pytest.mark.usefixtures("in_warm_processes")
def test_a_script_that_fails(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--plan", "plan.toml", "-q", "--out", "v", "train.py", "fail"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("fp8debug: the BF16 baseline ended with exit code 9; nothing was run after it. ")
    assert "\n  no data\n" in err


def test_an_interrupt_ends_it(
    folder: Path, trainings_by: Callable[[Child], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any) -> Ended:
        raise KeyboardInterrupt

    trainings_by(interrupted)
    assert main(["verify", "--plan", "plan.toml", "-q", "--out", "v", "train.py"]) == 130
    assert capsys.readouterr() == ("", "fp8debug: interrupted; what has run is in v\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train.py"], "verify takes --plan FILE"),
        (["train.py", "--plan", "nosuch.toml"], "cannot read the plan nosuch.toml"),
        (["trian.py", "--plan", "plan.toml"], "no such script: trian.py (nearest: train.py"),
        (["train.py", "--plan", "plan.toml", "--recipe", "curent"], "unknown recipe 'curent'"),
        (["train.py", "--plan", "plan.toml", "--min-recovery", "120%"], "expected a share such as 80% or 0.8"),
        (["train.py", "--plan", "plan.toml", "--out", "."], "--out . is not empty"),
        (["train.py", "--plan", "plan.toml", "--batch", "b.pt"], "--batch is the batch of --inference"),
    ],
)
def test_usage_errors(folder: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_setting_that_verify_decides(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "fp8debug.toml").write_text('emulate = "current"\n')
    assert main(["verify", "train.py", "--plan", "plan.toml"]) == 2
    assert "sets emulate, which verify decides itself" in capsys.readouterr().err


def test_a_folder_that_is_there_is_renamed(folder: Path) -> None:
    (folder / "v").mkdir()
    (folder / "v" / "old").touch()
    request = verification.Request("train.py", (), False, Plan("current"), "plan.toml", None, 0, 1, 20, 0.8, True)
    assert verification.Trainings(request, "v", force=True).folder == Path("v")
    assert (folder / "v.old" / "old").exists() and not (folder / "v").exists()


def test_a_child_prints_as_it_goes_and_its_last_lines_are_kept() -> None:
    lines: list[str] = []
    code = "import os, sys; print(os.environ['WORD']); [print(i, file=sys.stderr) for i in range(30)]; sys.exit(4)"
    ended = run_child([sys.executable, "-c", code], {"WORD": "hello"}, lines.append)
    assert ended == Ended(4, tuple(str(i) for i in range(10, 30)))
    assert "hello" in lines and len(lines) == 31


STOPPED = """
import sys
from fp8debug.cli.child import run_child
code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
run_child([sys.executable, "-c", code], {}, lambda line: print(line, flush=True))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_child_ends_when_we_are_told_to(number: signal.Signals) -> None:
    ours = subprocess.Popen(
        [sys.executable, "-c", STOPPED], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, process_group=0
    )
    assert ours.stdout is not None
    child = int(ours.stdout.readline())
    ours.send_signal(number)
    assert ours.wait(20) == -number
    ours.stdout.close()
    deadline = time.monotonic() + 10
    while is_alive(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Whether the process is there and no zombie, which whoever adopted it has not buried yet."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.startswith("Z")
