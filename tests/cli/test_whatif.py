"""`fp8debug whatif`: what a person reads, what a program gets, what is refused."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fp8debug import __version__
from fp8debug.cli.main import main
from fp8debug.cli.render.matrix import Cell, Group, matrix_lines
from fp8debug.cli.render.stream import Looks
from fp8debug.rundir import RunDir

Golden = Callable[[str, str], None]

SAMPLES = Path(__file__).resolve().parents[2] / "sample_dumps"


class WhatIf:
    """`fp8debug whatif` in this process, from inside one folder."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.err = ""

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """What it prints on stdout; `err` has the rest. Its exit code must be `code`."""
        self._capsys.readouterr()
        got = main(["whatif", *arguments])
        out, self.err = self._capsys.readouterr()
        assert got == code, self.err
        return out

    def json(self, *arguments: str) -> Any:
        """The document of `--json`, read by a parser that knows no NaN."""
        return json.loads(self(*arguments, "--json"), parse_constant=_refuse)


def _refuse(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


@pytest.fixture(scope="module")
def folder(runs: ModuleType, synthetic_run: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run `recipes`, which is also the latest one."""
    path: Path = tmp_path_factory.mktemp("whatif").resolve()
    runs.write_recipes(synthetic_run, path / "fp8debug-runs" / "recipes")
    (path / "recipes").symlink_to("fp8debug-runs/recipes")
    return path


@pytest.fixture
def ask(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> WhatIf:
    """Run from inside `folder`."""
    monkeypatch.chdir(folder)
    return WhatIf(capsys)


# What a person reads ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("default", ()),
        ("layers", ("--per", "layer", "--top", "2", "--recipe", "current", "--recipe", "mxfp8")),
        ("sweep", ("--recipe", "delayed:amax_history_len=4", "--sweep", "margin=0:2", "--tensor", "activation")),
    ],
)
def test_text(ask: WhatIf, golden: Golden, name: str, arguments: tuple[str, ...]) -> None:
    text = ask("recipes", *arguments)
    golden(f"whatif_{name}.txt", text)
    assert ask.err == ""
    assert max(len(line) for line in text.splitlines() if not line.startswith("    fp8debug ")) <= 80
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("smollm2", ("--recipe", "current", "--recipe", "delayed", "--sweep", "fp8_format=E4M3,E5M2")),
        ("gpt-outlier", ("--per", "layer", "--top", "3")),
    ],
)
def test_sample_runs(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    golden: Golden,
    name: str,
    arguments: tuple[str, ...],
) -> None:
    monkeypatch.chdir(SAMPLES.parent)
    golden(f"sample_dumps/{name}.whatif.txt", WhatIf(capsys)(f"sample_dumps/{name}", *arguments))


def test_the_latest_run_is_taken_and_its_commands_can_be_typed(ask: WhatIf) -> None:
    os.utime("fp8debug-runs/recipes")
    text = ask("--recipe", "current")
    assert "WHAT IF fp8debug-runs/recipes\n" in text
    assert "  fp8debug whatif fp8debug-runs/recipes --json\n" in text
    for command in re.findall(r"^  fp8debug (.*)$", text, re.MULTILINE):
        assert main(command.split()) == 0


def test_recipes_without_any_figure_are_told_and_not_shown(ask: WhatIf) -> None:
    text = ask("recipes", "--recipe", "mxfp4", "--recipe", "current", "--sweep", "scale_rule=floor,even")
    assert not [line for line in text.splitlines() if line.startswith("  mxfp4")]
    assert "mxfp4:scale_rule=floor and mxfp4:scale_rule=even were not recorded" in " ".join(text.split())
    assert "    fp8debug attach --recipe mxfp4:scale_rule=floor --recipe mxfp4:scale_rule=even ...\n" in text


def test_colours_follow_the_terminal(ask: WhatIf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = ask("recipes", "--recipe", "delayed")
    assert "\x1b[31m  4.3\x1b[0m" in coloured, "an SQNR below what rounding can give"
    monkeypatch.setenv("NO_COLOR", "1")
    assert re.sub(r"\x1b\[\d+m", "", coloured) == ask("recipes", "--recipe", "delayed")


def test_hostile_and_long_names(ask: WhatIf, synthetic_run: ModuleType, tmp_path: Path) -> None:
    run = synthetic_run.SyntheticRun(tmp_path / "run", status="closed", tensors=["x"])
    name = "net.\x1b[31m" + ".".join(f"layers.{i}.block" for i in range(9))
    run.add(name, "x", np.linspace(-7, 7, 512, dtype=np.float32), step=0)
    text = ask(str(run.write()), "--per", "layer", "--recipe", "current")
    assert "\x1b" not in text
    lines = text.splitlines()
    heading = next(i for i, line in enumerate(lines) if line.startswith("1. "))
    assert "".join(line.strip() for line in lines[heading : heading + 2]) == "1. " + name.replace("\x1b", "\\x1b")


def test_groups_go_side_by_side_as_far_as_they_fit() -> None:
    rows = ((Cell("31.5"), Cell("25.6", is_bad=True)), (Cell("exact"), Cell()))
    groups = [Group("SQNR, dB", ("x", "dy"), rows), Group("a much longer title", ("x", "dy"), rows)]
    assert list(
        matrix_lines("recipe", ["current", "a-recipe-whose-name-is-much-too-long"], groups, Looks(width=44))
    ) == [
        "              SQNR, dB  a much longer title",
        "  recipe       x    dy              x    dy",
        "  current   31.5  25.6           31.5  25.6",
        "  a-recipe-whose-name-is-much-too-long",
        "           exact     -          exact     -",
    ]
    narrow = list(matrix_lines("recipe", ["current", "b"], groups, Looks(width=42)))
    assert narrow[4] == ""
    assert narrow[1] == narrow[6].replace("        ", "", 1)


# What a program gets --------------------------------------------------------------------------------------------------


def test_json(ask: WhatIf) -> None:
    document = ask.json("recipes", "--recipe", "mxfp8", "--recipe", "current", "--layer", "fc1", "--steps", "1-")
    assert document["fp8debug_version"] == __version__
    assert document["whatif_version"] == 1
    assert Path(document["path"]).name == "recipes"
    assert document["recipes"] == ["mxfp8", "current"]
    assert (document["n_histograms"], document["steps"]) == (12, [17, 19])
    assert document["layers"] == ["blocks.0.fc1", "blocks.1.fc1"]
    blocks = [e for e in document["operands"] if e["recipe"] == "mxfp8" and e["tensor"] == "x"]
    assert {e["gemm"] for e in blocks} == {None, "fprop", "wgrad"}
    for found in (*document["operands"], *document["gemms"]):
        signal = found["sum_x2"] if "sum_x2" in found else found["sum_y2"]
        assert found["sqnr_db"] == pytest.approx(10 * math.log10(signal / found["sum_err2"]))
    assert [note["kind"] for note in document["notes"]] == ["sample"]


def test_json_is_complete_whatever_top(ask: WhatIf) -> None:
    document = ask.json("recipes", "--per", "layer", "--top", "1", "--recipe", "current")
    assert document["layers"][0] == "blocks.1.fc1"
    assert {e["layer"] for e in document["operands"]} == {"blocks.0.fc1", "blocks.1.fc1", "blocks.2.fc2"}
    assert {e["layer"] for e in document["gemms"]} == {"blocks.0.fc1", "blocks.1.fc1", "blocks.2.fc2"}


# Refusals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--recipe", "mxpf8"), 2, "unknown recipe 'mxpf8'; did you mean mxfp8"),
        (("--recipe", "delayed:margin=40"), 2, "margin is 40, expected an integer from -32 to 32"),
        (("--sweep", "margin=0-4"), 2, "--sweep 'margin=0-4': expected NAME=FIRST:LAST"),
        (("--sweep", "margin=40:44"), 2, "margin is 40, expected an integer from -32 to 32"),
        (("--sweep", "mragin=0:4"), 2, "did you mean margin"),
        (("--layer", "attention"), 2, "matches none of the 3 recorded layers; nearest names: "),
        (("--tensor", "z"), 2, "--tensor: got 'z'; expected some of x, w, dy, y, dx, dw"),
        (("--tensor", "wgrad"), 2, "dw was not recorded; this run has x, w, dy; record it with `fp8debug attach"),
        (("--steps", "20-"), 2, "none of the steps asked for was recorded; this run has steps 0 to 19"),
        (("--steps", "x"), 2, "steps"),
        (("--steps", "3"), 1, "none of the layers, tensors and steps asked for was sampled"),
        (("--per", "step"), 2, "--per"),
    ],
)
def test_refusals(ask: WhatIf, arguments: tuple[str, ...], code: int, message: str) -> None:
    assert ask("recipes", *arguments, code=code) == ""
    assert message in ask.err


def test_margin_zero_to_minus_one_is_empty(ask: WhatIf) -> None:
    ask("recipes", "--sweep", "margin=0:-1", code=2)
    assert "the range is empty" in ask.err


def test_files_that_cannot_be_read_are_named(
    ask: WhatIf, runs: ModuleType, synthetic_run: ModuleType, tmp_path: Path
) -> None:
    path = RunDir(runs.write_recipes(synthetic_run, tmp_path / "damaged"))
    for table in ("blocks", "histograms"):
        path.part_path(table, 0, 0).write_bytes(b"PAR1 cut")
    text = ask(str(path.path), "--recipe", "current", "--recipe", "mxfp8")
    notes = " ".join(text[text.index("NOTES") :].split())
    assert "part-000000.parquet is left out: not a readable Parquet file" in notes
    assert "1 more file" in notes and "may have been recorded" in notes
    assert "GEMM error, %" in text
    assert "gain" not in text and "become zero" not in text, "no columns of which nothing is known"


def test_evaluation_alone_says_so(ask: WhatIf, synthetic_run: ModuleType, tmp_path: Path) -> None:
    run = synthetic_run.SyntheticRun(tmp_path / "evaluated")
    run.add("fc1", "x", np.ones((4, 4), np.float32), step=0, pass_="eval")
    run.write()
    ask(str(tmp_path / "evaluated"), code=1)
    assert "only evaluation passes were recorded" in ask.err
    assert "model.train()" in ask.err


def test_no_such_run(ask: WhatIf, synthetic_run: ModuleType, tmp_path: Path) -> None:
    ask("nowhere", code=1)
    assert "no such run: " in ask.err
    synthetic_run.SyntheticRun(tmp_path / "empty")
    ask(str(tmp_path / "empty"), code=1)
    assert "nothing recorded yet in" in ask.err
