"""`fp8debug checkpoint`: what a person reads, what a program gets, exit codes, what is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from html.parser import HTMLParser
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fp8debug.cli.main import main

Golden = Callable[[str, str], None]
Tensors = dict[str, torch.Tensor]
CONFIG = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
NAMES = [f"model.layers.{layer}.mlp.{part}" for layer in range(3) for part in ("gate_proj", "up_proj", "down_proj")]


class Ask:
    """`fp8debug checkpoint` in this process, from inside a folder of checkpoints."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.err = ""

    def __call__(self, *arguments: str, code: int = 0) -> str:
        self._capsys.readouterr()
        got = main(["checkpoint", *arguments])
        out, self.err = self._capsys.readouterr()
        assert got == code, out + self.err
        return out


def put(folder: Path, tensors: Mapping[str, torch.Tensor], config: object = None) -> None:
    folder.mkdir()
    save_file(dict(tensors), folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))


def in_blocks(w: np.ndarray[tuple[int, int], np.dtype[np.float32]]) -> tuple[torch.Tensor, torch.Tensor]:
    tiles = w.reshape(2, 128, 2, 128)
    scale = (np.abs(tiles).max(axis=(1, 3)) / 448).astype(np.float32)
    codes = (tiles / scale[:, None, :, None]).reshape(256, 256).clip(-448, 448).astype(ml_dtypes.float8_e4m3fn)
    return torch.from_numpy(codes.view(np.uint8)).view(torch.float8_e4m3fn), torch.from_numpy(scale)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """master, fp8, dropped (a scale is missing), inverted (a scale is its inverse), bf16, pair (nobody knows)."""
    folder = tmp_path_factory.mktemp("checkpoints")
    rng = np.random.default_rng(3)
    master: Tensors = {}
    right: Tensors = {}
    for name in NAMES:
        w = rng.standard_normal((256, 256)).astype(np.float32) * np.float32(0.02)
        codes, scale = in_blocks(w)
        master[f"{name}.weight"] = torch.from_numpy(w)
        right |= {f"{name}.weight": codes, f"{name}.weight_scale_inv": scale}
    norms = {f"model.layers.{layer}.input_layernorm.weight": torch.ones(256).bfloat16() for layer in range(3)}
    put(folder / "master", master | norms)
    put(folder / "fp8", right | norms, CONFIG)
    lost = f"{NAMES[4]}.weight_scale_inv"
    inverse: Tensors = {lost: 1 / right[lost]}
    put(folder / "dropped", {name: one for name, one in (right | norms).items() if name != lost}, CONFIG)
    put(folder / "inverted", right | norms | inverse, CONFIG)
    put(folder / "bf16", {name: one.bfloat16() for name, one in (master | norms).items()})
    put(folder / "pair", {"a": right[f"{NAMES[0]}.weight"], "a_scale": torch.tensor(0.5)})
    os.mkfifo(folder / "pipe")
    (folder / "gone").symlink_to("nothing")
    return folder


@pytest.fixture
def ask(checkpoints: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    monkeypatch.chdir(checkpoints)
    monkeypatch.setenv("COLUMNS", "80")
    return Ask(capsys)


def test_a_right_one_has_nothing_above_a_note(ask: Ask) -> None:
    text = ask("fp8")
    assert "9 tensors: value = E4M3 code x weight_scale_inv (F32, one a block of 128x128)" in " ".join(text.split())
    assert "verdict    no error and no warning" in text
    held = json.loads(ask("fp8", "--reference", "master", "--json"))
    assert {one["verdict"] for one in held["comparisons"][0]["tensors"]} <= {"faithful", "recoded", "identical"}
    assert {one["severity"] for one in held["findings"]} <= {"note"}


def test_high_precision_has_nothing_to_say(ask: Ask) -> None:
    text = ask("bf16")
    assert "nothing in it is quantised; no error and no warning" in text
    assert json.loads(ask("bf16", "--json"))["findings"] == []


def test_a_file_that_is_missing_is_an_error(ask: Ask, checkpoints: Path, tmp_path: Path) -> None:
    places = {"model.layers.0.input_layernorm.weight": "model.safetensors", "gone.weight": "gone.safetensors"}
    index = {"weight_map": places}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "model.safetensors").symlink_to(checkpoints / "bf16" / "model.safetensors")
    text = " ".join(ask(str(tmp_path), code=3).split())
    assert "1 tensor that the index places in gone.safetensors, which is missing: gone.weight" in text
    assert " in reading it, told at the end" in text


def test_an_error_is_three(ask: Ask, golden: Golden) -> None:
    golden("checkpoint_dropped.txt", ask("dropped", code=3))
    golden("checkpoint_inverted.txt", ask("inverted", "--reference", "master", code=3))


def test_json_has_what_is_known(ask: Ask) -> None:
    found = json.loads(ask("inverted", "--reference", "master", "--json", code=3))
    assert (found["audit_version"], found["path"]) == (1, "inverted")
    assert found["n_errors"] >= 1
    assert found["convention"]["dialect"] == "deepseek"
    wrong = {one["name"]: one for one in found["comparisons"][0]["tensors"] if one["verdict"] == "different"}
    assert set(wrong) == {f"{NAMES[4]}.weight"}
    assert wrong[f"{NAMES[4]}.weight"]["hypotheses"][0]["name"] == "inverted"
    assert found["facts"]["codes"][f"{NAMES[0]}.weight"]["n"] == 256 * 256


class Tags(HTMLParser):
    """Elements of a page, and whether they are balanced."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.text = ""
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page(ask: Ask) -> None:
    page = ask("inverted", "--reference", "master", "--html", "-", code=3)
    parsed = Tags(page)
    assert parsed.seen.count("article") == len(
        json.loads(ask("inverted", "--reference", "master", "--json", code=3))["findings"]
    )
    assert "script" not in parsed.seen
    assert parsed.seen.count("svg") == 3  # scales, SQNR, gain
    assert parsed.text.count(f"{NAMES[4]}.weight") > 1
    assert ask("fp8", "--html", "fp8.html") == "fp8.html\n"
    assert Path("fp8.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert ask("fp8", "--html", "fp8.html") == "fp8.html\n"


def test_headers_only(ask: Ask) -> None:
    found = json.loads(ask("fp8", "--headers-only", "--json"))
    assert found["facts"]["codes"] == {}
    assert len(found["facts"]["scales"]) == 9
    assert found["headers_only"] is True
    for checkpoint in ("fp8", "bf16"):
        told = " ".join(ask(checkpoint, "--headers-only").split())
        assert "; only headers and scales were read, no codes and no weights" in told
    assert "only headers" not in ask("fp8")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nowhere"], 1, "nowhere"),
        (["pair"], 2, "--as multiplies or --as divides"),
        (["fp8", "--as", "deepsek"], 2, "did you mean deepseek"),
        (["fp8", "--consumer", "vlm"], 2, "vllm"),
        (["fp8", "--json", "--html", "x"], 2, "expected one of them"),
        (["fp8", "--reference", "nowhere"], 1, "nowhere"),
        (["fp8", "--run", "nowhere"], 1, "nowhere"),
        (["fp8", "--run", "bf16"], 2, "give it with --reference"),
        (["fp8", "--headers-only", "--reference", "bf16"], 2, "expected one of them"),
        (["fp8", "--html", "pipe"], 2, "- for standard output"),
        (["pipe"], 1, "pipe is neither a file nor a folder"),
        (["gone"], 1, "gone is a link to nothing"),
        (["n" * 5000], 1, "File name too long"),
    ],
)
def test_what_is_refused(ask: Ask, arguments: list[str], code: int, words: str) -> None:
    assert ask(*arguments, code=code) == ""
    assert words in ask.err
    assert "Traceback" not in ask.err
