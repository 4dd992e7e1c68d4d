"""Names that a terminal, a markup language, SQL or a file system would obey: shown, stored and planned as they are."""

from __future__ import annotations

import io
import json
import re
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import fp8debug
from fp8debug.analysis.plans import TARGETS, export
from fp8debug.analysis.plans.check import check_file
from fp8debug.cli.main import main
from fp8debug.plans import Plan, PlanEntry, read_plan
from fp8debug.rundir import RunDir

NAMES = (
    "clear\x1b[2J\x1b]0;title\x07",
    "line\nbreak\r",
    "[red]bold[/red]",
    "back\x08\x08space\x7f",
    "\u202egnp\u2066exe\u200b",
    "<script>alert(1)</script>&amp;",
    "it's \"; drop table steps; --",
    "*?[a-z]{1}$(id)",
    "a/b\\c",
    "c1\x9b31m\x85\u2028",
    "{0[__class__]}%s",
    "long" * 2_500,
)
CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]")
COLOURS = re.compile(r"\x1b\[\d+m")
Ask = Callable[..., str]


class Net(nn.Module):
    """One Linear under each name."""

    def __init__(self) -> None:
        super().__init__()
        for name in NAMES:
            self.add_module(name, nn.Linear(16, 16, bias=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.children():
            x = layer(x)
        return x


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded run whose script, name and reason are hostile as well."""
    path = tmp_path_factory.mktemp("runs") / "run"
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with fp8debug.attach(net, run_dir=path, every=1, engine="torch", quiet=True, detail=()) as session:
        for _ in range(3):
            net(torch.randn(16, 16)).square().sum().backward()
            optimizer.step()
            session.log(eval={NAMES[0]: 0.5})
    run_dir = RunDir(path)
    manifest = run_dir.read_manifest()
    hostile = NAMES[0] + NAMES[2] + NAMES[4]
    run_dir.write_manifest(
        replace(
            manifest, name=hostile, command=["fp8debug", "attach", f"tr{hostile}.py", NAMES[1]], status="failed",
            status_reason=hostile, versions={hostile: hostile}, git_commit=hostile,
        )
    )  # fmt: skip
    return path


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """The command line; what it printed, on both streams."""

    def call(*arguments: str) -> str:
        assert main(list(arguments)) in (0, 1, 3), arguments
        out, err = capsys.readouterr()
        return out + err

    return call


def verbs(run: Path) -> list[list[str]]:
    return [
        ["report", str(run)],
        ["report", str(run), "--json"],
        ["report", str(run), "--remedies", "--fail-on", "findings"],
        ["whatif", str(run)],
        ["plan", str(run), "--for", "te"],
        ["compare", str(run), str(run)],
        ["runs", str(run.parent)],
        ["control", str(run)],
        ["sql", str(run), "select layer, message from events cross join (select distinct layer as l from tensors)"],
        ["sql", str(run), "from layers"],
        ["sql", str(run), f"select '{NAMES[0]}' as \"{NAMES[4]}\", error('{NAMES[0]}')"],
    ]


def test_nothing_is_obeyed_in_a_pipe(run: Path, ask: Ask) -> None:
    for command in verbs(run):
        text = ask(*command)
        assert text, command
        assert not (found := CONTROLS.search(text)), f"{command}: {found!r}"
    assert "[red]bold[/red]" in ask("sql", str(run), "from layers"), "markup is text"
    assert r"clear\x1b[2J\x1b]0;title\x07" in ask("report", str(run))


def test_nothing_is_obeyed_on_a_terminal(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    shown = [command for command in verbs(run) if command[0] in ("whatif", "runs", "control") or command[2:] == []]
    for command in (*shown, ["sql", str(run), "from layers", "--format", "csv"], ["report", str(run / NAMES[0])]):
        terminal = Terminal()
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.setattr(sys, "stderr", terminal)
        main(command)
        text = COLOURS.sub("", terminal.getvalue())
        assert not (found := CONTROLS.search(text)), f"{command}: {found!r}"


def test_names_come_back_whole(run: Path, ask: Ask, tmp_path: Path) -> None:
    with fp8debug.open_run(run) as opened:
        rows = opened.sql("select distinct layer from tensors order by layer").fetchall()
    assert [name for (name,) in rows] == sorted(NAMES)
    bundle = tmp_path / "b.zip"
    ask("bundle", str(run), "-o", str(bundle))
    with zipfile.ZipFile(bundle) as archive:
        assert all(not CONTROLS.search(name) and ".." not in name for name in archive.namelist())
        (manifest,) = [name for name in archive.namelist() if name.endswith("run.json")]
        layers = json.loads(archive.read(manifest))["layers"]
    assert [layer["name"] for layer in layers] == list(NAMES)


@pytest.mark.parametrize("target", TARGETS)
def test_plans_say_the_same_names(run: Path, tmp_path: Path, target: str) -> None:
    layers = RunDir(run).read_manifest().layers
    reason = f"{NAMES[0]}\n[[entry]]\n'''\n\"\"\"\n{NAMES[4]}"
    plan = Plan("current", tuple(PlanEntry(name, "bf16", reason=reason) for name in NAMES[::2]), NAMES[1])
    exported = export(plan, target, layers, "model")
    assert not (found := CONTROLS.search(exported.text)), f"{found!r}"
    path = tmp_path / "plan"
    path.write_text(exported.text, encoding="utf-8")
    check = check_file(path, layers, "model")
    written = {entry.layer for entry in exported.plan.entries}
    taken = {name for rule in check.rules for name in rule.matched}
    assert taken == written and written <= set(NAMES)
    assert all(not rule.beyond for rule in check.rules)
    if target == "fp8debug":
        assert read_plan(path) == plan


def test_what_capture_says(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    net = Net()
    with fp8debug.attach(net, run_dir=tmp_path / "run", engine="torch", layers=["clear"], detail=()):
        pass
    with pytest.raises(fp8debug.errors.UsageError) as raised:
        fp8debug.attach(net, run_dir=tmp_path / "other", layers=["\x1b[2Jnone"], quiet=True)
    out, err = capsys.readouterr()
    assert "never ran" in err or "no step" in err or err
    assert not CONTROLS.search(out + err)
    assert "none" in str(raised.value)
