"""`fp8debug plan`: what is written, what is said of it, and plans held against runs and models."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from fp8debug.cli.main import main
from fp8debug.plans import read_plan

MODEL = """
from torch import nn

def build():
    return nn.ModuleDict({"layers": nn.ModuleList(nn.Linear(4, 4) for _ in range(12))})
"""


@pytest.fixture
def faulty(shared: Path) -> str:
    return str(shared / "faulty")


def test_plan_of_a_run(faulty: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", faulty]) == 0
    out, err = capsys.readouterr()
    (tmp_path / "plan.toml").write_text(out)
    plan = read_plan(tmp_path / "plan.toml")
    assert plan.run == "synthetic" and plan.entries and all(entry.reason for entry in plan.entries)
    changed = {entry.layer for entry in plan.entries}
    assert f"fp8debug: {len(changed)} of " in err and f"the others stay in {plan.recipe}: " in err


def test_file_of_another_tool(faulty: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "precision.yaml"
    command = ["plan", faulty, "--for", "megatron", "-o", str(file)]
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert out == "" and f"wrote {file} for megatron: " in err
    assert yaml.safe_load(file.read_text())["configs"]["bf16"]["training_recipe"] == {}
    assert main(command) == 2
    assert "exists already; add --force" in capsys.readouterr().err
    file.write_text("")
    assert main([*command, "--force"]) == 0 and file.read_text() != ""
    assert main(["plan", faulty, "-o", f"{faulty}/plan.toml"]) == 2
    capsys.readouterr()

    assert main(["plan", "--check", str(file), faulty]) == 0
    text = capsys.readouterr().out.replace(str(file), "precision.yaml").replace(faulty, "RUN")
    assert "A plan for megatron, " in text and "stay in the recipe of the rest" in text
    assert max(map(len, text.splitlines())) <= 80


def test_json_has_what_was_planned_and_what_was_written(faulty: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", faulty, "--for", "torchtitan", "--recipe", "delayed", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["plan_version"] == 1 and document["for"] == "torchtitan"
    listed = tomllib.loads(document["text"])["quantize"]["linear"]["float8"]["filter_fqns"]
    assert listed == [entry["layer"] for entry in document["written"]["entries"]]
    assert set(listed) == {entry["layer"] for entry in document["planned"]["entries"]}
    assert {entry["change"] for entry in document["written"]["entries"]} == {"bf16"}
    assert {entry["change"] for entry in document["planned"]["entries"]} > {"bf16"}
    assert [note["layer"] for note in document["notes"]] == ["", "blocks.2.fc2"]


def test_whole_layers(faulty: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", faulty, "--layers-only", "-o", str(tmp_path / "plan.toml")]) == 0
    plan = read_plan(tmp_path / "plan.toml")
    assert set(plan.layers_in_bf16) == {entry.layer for entry in plan.entries} != set()
    assert f"{len(plan.entries)} layer" in capsys.readouterr().err


def test_nothing_to_change(shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "debug.yaml"
    assert main(["plan", str(shared / "healthy"), "--for", "te", "-o", str(file)]) == 0
    err = capsys.readouterr().err
    assert "nothing to change: no operand that was recorded is outside the rules under " in err
    assert "There is nothing to change: this file changes nothing." in file.read_text()
    assert main(["plan", "--check", str(file), str(shared / "healthy")]) == 0


def test_smallest_set(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(shared / "faulty"), "--budget", "50%", "--json"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["fallback"]["flops_in_bf16"] <= 0.5
    assert document["fallback"]["layers"] == [entry["layer"] for entry in document["planned"]["entries"]]
    assert "SQNR of all GEMMs together: " in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--for", "megatrn"], "--for 'megatrn': did you mean megatron"),
        (["--budget", "7"], "--budget: got '7'; expected a share of the GEMM FLOPs, such as 5% or 0.05"),
        (["--recipe", "delaid"], "delayed"),
        (["--names", "mine"], "--names 'mine': expected te"),
        (["--recipe", "bf16"], "--recipe bf16: there is nothing to take out of BF16"),
    ],
)
def test_wrong_words(options: list[str], words: str, faulty: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", faulty, *options]) == 2
    out, err = capsys.readouterr()
    assert words in err and out == ""


def test_check_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names, model, plan = (tmp_path / name for name in ("names.json", "my_checked_model.py", "titan.toml"))
    names.write_text(json.dumps([f"layers.{i}" for i in range(12)]))
    model.write_text(MODEL)
    plan.write_text('[float8]\nfilter_fqns = ["layers.1", "layers.12"]\n')
    for source in (str(names), f"{model}:build"):
        assert main(["plan", "--check", str(plan), source]) == 3
        text = capsys.readouterr().out
        assert "more than meant: layers.10, layers.11" in text
        assert "layers.12\n    matches nothing: nearest: layers." in text
        assert "9 of 12 layers stay in the recipe of the rest: layers.0, layers.2," in text
    assert main(["plan", "--check", str(plan), str(names), "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert not document["is_clean"] and document["format"] == "torchtitan" and len(document["left"]) == 9
    plan.write_text('[float8]\nfilter_fqns = ["layers.11"]\n')
    assert main(["plan", "--check", str(plan), str(names)]) == 0


@pytest.mark.parametrize(
    ("source", "code", "words"),
    [
        ("nowhere", 1, "no such run: nowhere"),
        ("model.py", 2, "expected file.py:name"),
        ("names.txt", 2, "expected layer names, one a line or as a JSON list"),
    ],
)
def test_check_against_nothing(
    source: str, code: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("names.txt").write_text("\n")
    Path("plan.toml").write_text('[float8]\nfilter_fqns = ["a"]\n')
    assert main(["plan", "--check", "plan.toml", source]) == code
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("recipe", "change", "words"),
    [("delayedd", "bf16", "the plan: unknown recipe 'delayedd'"), ("delayed", "bf17", "head: unknown recipe 'bf17'")],
)
@pytest.mark.parametrize(
    "command", [["plan", "--check", "plan.toml", "names.txt"], ["verify", "--plan", "plan.toml", "t.py"]]
)
def test_recipe_of_a_plan_that_does_not_exist(
    command: list[str],
    recipe: str,
    change: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    """It is refused at once, not by the third training."""
    monkeypatch.chdir(tmp_path)
    Path("names.txt").write_text("head\n")
    Path("t.py").write_text("raise SystemExit('started')\n")
    Path("plan.toml").write_text(f'recipe = "{recipe}"\n[[entry]]\nlayer = "head"\nchange = "{change}"\n')
    assert main(command) == 2
    assert words in capsys.readouterr().err


def test_check_against_a_saved_model(tmp_path: Path, warm_trainers: Any) -> None:
    """The weights of a Hugging Face directory are not needed: there are none."""
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 16, "intermediate_size": 32,
              "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 64}  # fmt: skip
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "config.json").write_text(json.dumps(config))
    (tmp_path / "fp8_plan.py").write_text("HIGH_PRECISION = ('lm_head', 'model.layers.1.mlp.up_proj')\n")
    ran = warm_trainers.run(tmp_path, "-m", "fp8debug", "plan", "--check", "fp8_plan.py", "saved", HF_HUB_OFFLINE="1")
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert "13 of 15 layers stay in the recipe of the rest" in ran.stdout
