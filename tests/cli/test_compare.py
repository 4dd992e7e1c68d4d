"""`fp8debug compare`: what a person reads, what a program gets, exit codes, what is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fp8debug.cli.main import main

Golden = Callable[[str, str], None]
STEPS = 200


class Compare:
    """`fp8debug compare` in this process, from inside a folder of curves."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.err = ""

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """What it prints on stdout; `err` has the rest. Its exit code must be `code`."""
        self._capsys.readouterr()
        got = main(["compare", *arguments])
        out, self.err = self._capsys.readouterr()
        assert got == code, self.err
        return out


def write(path: Path, loss: Any, norm: Any, **manifest: Any) -> None:
    rows = [f"{step},{a:.6f},{b:.6f}" for step, (a, b) in enumerate(zip(loss, norm, strict=True))]
    path.write_text("iteration,lm loss,grad norm\n" + "\n".join(rows) + "\n")
    path.with_name(f"{path.name}.manifest.json").write_text(json.dumps(manifest))


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Compare:
    """A baseline, one run that spikes and one that ends in NaN, in the working directory."""
    rng = np.random.default_rng(0)
    loss = 2.5 + 2 * np.exp(-np.arange(STEPS) / 30) + rng.normal(0, 0.02, STEPS)
    norm = 1 + 0.1 * rng.normal(size=STEPS)
    settings = {"seed": 1, "lr": 3e-4, "global_batch_size": 64, "torch_version": "2.13.0"}
    write(tmp_path / "bf16.csv", loss, norm, precision="bf16", **settings)
    spiking, jumping = loss + rng.normal(0, 0.002, STEPS), norm.copy()
    spiking[120:126] += [1.0, 2.0, 1.5, 1.0, 0.5, 0.3]
    jumping[119] = 9.0
    write(tmp_path / "spike.csv", spiking, jumping, precision="fp8", evals={"mmlu": 60.0}, **settings)
    broken = loss.copy()
    broken[150:] = math.nan
    write(tmp_path / "nan.csv", broken, norm, precision="fp8", cpu_offload=True, **{**settings, "seed": 2})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return Compare(capsys)


def test_text(ask: Compare, golden: Golden) -> None:
    text = ask("bf16.csv", "spike.csv", "nan.csv", "--gate", "0.01", code=3)
    golden("compare.txt", text)
    assert all(len(line) <= 80 for line in text.splitlines())


def test_json_is_whole_and_has_no_nan(ask: Compare) -> None:
    text = ask("bf16.csv", "spike.csv", "nan.csv", "--json", "--top", "1")
    document = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert document["compare_version"] == 1
    spike, broken = document["pairs"]
    assert [found["first_step"] for found in spike["signals"]["own"]] == [120, 119]
    assert spike["signals"]["first_anomaly"]["series"] == "grad_norm"
    assert len(spike["gap"]["points"]) == 60
    assert (broken["verdict"]["word"], broken["comparability"]["level"]) == ("not_comparable", "not_comparable")
    assert broken["run"]["n_nonfinite"] == 50
    assert broken["triage"] == {"status": "not_comparable", "step": None, "first_step": None, "n_operands": 0,
                                "n_departed": 0, "departures": [], "capture_layers": []}  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("bf16.csv", "bf16.csv", "--gate", "0.01"), 0),
        (("bf16.csv", "spike.csv", "--gate", "0.05", "--gate", "1%"), 0),
        (("bf16.csv", "nan.csv"), 0),
        (("bf16.csv", "nan.csv", "--gate", "10"), 3),
        (("bf16.csv", "bf16.csv", "nan.csv", "--gate", "10%"), 3),
    ],
)
def test_exit_codes(ask: Compare, arguments: tuple[str, ...], code: int) -> None:
    ask(*arguments, code=code)


def test_a_gate_that_noise_leaves_open(ask: Compare) -> None:
    Path("a.csv").write_text("step,loss\n0,1\n1,1\n2,1\n")
    Path("b.csv").write_text("step,loss\n0,1\n1,1.1\n2,1.2\n")
    assert "Gate 0.01: UNDECIDED" in ask("a.csv", "b.csv", "--gate", "0.01", code=1)


def test_manifests_by_option(ask: Compare) -> None:
    Path("other.json").write_text(json.dumps({"precision": "fp8", "seed": 9}))
    text = ask("bf16.csv", "bf16.csv", "--manifest", "-", "--manifest", "other.json")
    assert "One difference beside the precision: seed" in " ".join(text.split())


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("bf16.csv",), 2, "RUN"),
        (("bf16.csv", "nothing.csv"), 1, "no such run or file: nothing.csv"),
        (("bf16.csv", "spike.csv", "--gate", "much"), 2, "--gate: got 'much'"),
        (("bf16.csv", "spike.csv", *["--manifest", "-"] * 3), 2, "got 3 for 2 curves"),
        (("bf16.csv", "bf16.csv.manifest.json"), 2, "no column that is read as the training loss"),
    ],
)
def test_refusals(ask: Compare, arguments: tuple[str, ...], code: int, message: str) -> None:
    assert ask(*arguments, code=code) == ""
    assert message in ask.err
