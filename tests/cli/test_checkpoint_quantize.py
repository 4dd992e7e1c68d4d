"""`fp8debug checkpoint quantize` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from fp8debug.cli.exit_codes import ExitCode
from fp8debug.cli.main import main


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two Linear layers and a norm."""
    (tmp_path / "in").mkdir()
    rng = np.random.default_rng(0)
    weights = {f"layers.{i}.fc.weight": rng.normal(0, 0.02, (128, 256)).astype(np.float32) for i in range(2)}
    save_file({**weights, "norm.weight": np.ones(256, np.float32)}, tmp_path / "in" / "model.safetensors")
    return tmp_path / "in"


def test_it_says_what_it_wrote_and_what_comes_next(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = source.parent / "out \x1b[31m"
    assert main(["checkpoint", "quantize", str(source), str(out), "--recipe", "block"]) == ExitCode.DONE
    text, err = capsys.readouterr()
    assert err == "" and "\x1b" not in text
    assert "deepseek, block, 0.1 MB (before: 0.3 MB)" in text
    assert "quantised 2 weights in E4M3, SQNR at least 31." in text and "kept      1 (no weight of a Linear)" in text
    assert f"--reference {source}\n" in text


def test_json_is_complete(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = source.parent / "out"
    arguments = ["--recipe", "nvfp4", "--as", "compressed-tensors", "--exclude", r"\.0\.", "--shard-size", "0.02MB"]
    assert main(["checkpoint", "quantize", str(source), str(out), *arguments, "--json"]) == ExitCode.DONE
    told = json.loads(capsys.readouterr().out)
    assert (told["dialect"], told["recipe"], told["fmt"]) == ("compressed-tensors", "nvfp4", "E2M1")
    assert told["quantised"][0]["tensors"] == [
        f"layers.1.fc.weight_{ending}" for ending in ("packed", "scale", "global_scale")
    ]
    assert 15 < told["quantised"][0]["sqnr_db"] < 25
    assert {one["name"]: one["why"] for one in told["kept"]} == {
        "layers.0.fc.weight": "--exclude names it", "norm.weight": "no weight of a Linear",
    }  # fmt: skip
    assert "model-00001-of-00002.safetensors" in told["files"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "--recipe is missing: expected a recipe such as current"),
        (["--recipe", "block", "--shard-size", "much"], "--shard-size 'much': expected a size such as 2GB"),
        (["--recipe", "block", "--shard-size", "0"], "--shard-size '0': expected a size"),
        (["--recipe", "mxfp8", "--as", "torch"], "--as torch: no dialect of that name is written"),
    ],
)
def test_usage_errors(arguments: list[str], told: str, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", "quantize", str(source), str(source.parent / "out"), *arguments]) == ExitCode.USAGE
    assert told in capsys.readouterr().err
    assert not (source.parent / "out").exists()


def test_one_file_has_no_shards(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(source.parent / "a.safetensors")
    assert main(["checkpoint", "quantize", str(source), out, "--recipe", "block", "--shard-size", "1GB"]) == 2
    assert "got --shard-size and one file" in capsys.readouterr().err


def test_what_is_there_is_not_overwritten(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["checkpoint", "quantize", str(source), str(source.parent / "out"), "--recipe", "rowwise"]
    assert main(arguments) == ExitCode.DONE
    assert main(arguments) == ExitCode.USAGE
    assert "exists already; add --force" in capsys.readouterr().err
    assert main([*arguments, "--force"]) == ExitCode.DONE
