"""From paths to stores: what is opened, and what is said where nothing can be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fp8debug.analysis.checkpoint.store import open_store
from fp8debug.errors import Fp8DebugError, UsageError

Written = Callable[..., Path]
Raw = Callable[..., Path]
ONE = {"w": ("F32", np.ones((2, 3)))}


def refused(path: object, kind: type[Fp8DebugError] = Fp8DebugError) -> str:
    with pytest.raises(kind) as caught:
        open_store(str(path))
    assert type(caught.value) is kind
    return str(caught.value)


def test_a_folder_or_its_file_with_the_configurations_beside(written: Written) -> None:
    configs = {"config.json": {"a": 1, "limit": float("inf")}, "quantize_config.json": {"bits": 8}, "other.json": {}}
    folder = written(ONE, configs=configs)
    for path in (folder, folder / "model.safetensors"):
        with open_store(path) as store:
            assert set(store.configs) == {"config.json", "quantize_config.json"}
            assert store.configs["config.json"]["a"] == 1 and store.problems == ()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "config.json is no usable configuration: Expecting"),
        (b"\xff", "byte 0 is no UTF-8"),
        (b"[1]", "it holds a list, not an object"),
        (b"[" * 5000, "nested too deep"),
        (b'{"a": "\\ud800"}', "half a character"),
        (b" " * (33 << 20), "it has 34,603,008 bytes"),
    ],
)
def test_a_damaged_configuration_is_a_problem_and_no_failure(written: Written, content: bytes, said: str) -> None:
    folder = written(ONE)
    (folder / "config.json").write_bytes(content)
    with open_store(folder) as store:
        assert store.configs == {} and list(store.tensors) == ["w"]
        (problem,) = store.problems
    assert said in problem and "taken as not there" in problem


def test_folders_of_a_pipeline_are_named(written: Written) -> None:
    written(ONE, folder="pipeline/transformer")
    written(ONE, folder="pipeline/vae", file="diffusion_pytorch_model.safetensors")
    top = written(ONE, folder="pipeline/.cache/x").parents[1]
    (top / "model_index.json").write_text("{}")
    message = refused(top, UsageError)
    assert message.endswith(f"give one of them: {top}/transformer, {top}/vae")


def test_several_checkpoints_in_a_folder_are_not_guessed_between(written: Written) -> None:
    folder = written(ONE)
    for name in ("model", "diffusion"):
        (folder / f"{name}.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": "model.safetensors"}}))
    message = refused(folder, UsageError)
    assert "diffusion.safetensors.index.json, model.safetensors.index.json" in message
    with open_store(folder / "model.safetensors.index.json") as store:
        assert list(store.tensors) == ["w"]


def test_what_holds_no_checkpoint_is_told_with_what_is_there(tmp_path: Path, written: Written) -> None:
    assert f"{tmp_path} is empty; expected a .safetensors file" in refused(tmp_path)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    assert "holds no checkpoint, but model.gguf; expected" in refused(tmp_path)
    assert "is no safetensors file: it is a GGUF file" in refused(tmp_path / "model.gguf")
    (tmp_path / "config.json").write_text("{}")
    assert f"give its folder, {tmp_path}" in refused(tmp_path / "config.json", UsageError)
    assert f"did you mean {tmp_path}/model.gguf?" in refused(tmp_path / "model.ggf")
    assert "copy it here first" in refused("s3://bucket/model", UsageError)


@pytest.mark.parametrize("path", ["org/model", "\0", "a" * 3000, "/dev/null/x", ""])
def test_paths_that_are_none(path: str) -> None:
    with pytest.raises(Fp8DebugError):
        open_store(path)


def test_a_file_without_tensors_says_so(raw: Raw) -> None:
    with open_store(raw({})) as store:
        assert store.problems == (f"there is no tensor in {store.path}",)


def test_a_file_that_changes_after_its_header_was_read_is_noticed(written: Written) -> None:
    file = written(ONE) / "model.safetensors"
    with open_store(file) as store:
        file.write_bytes(file.read_bytes() + b"x")
        with pytest.raises(Fp8DebugError, match="has changed"):
            store.whole("w")


def test_files_that_declare_gigabytes_take_no_memory(raw: Raw) -> None:
    """A sparse file of 50 GB: opened, its ends read, and what is too large to be held at once refused."""
    n = 50 * 10**9
    path = raw({"w": {"dtype": "F8_E4M3", "shape": [n // 100, 100], "data_offsets": [0, n]}})
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + n)
    with open_store(path) as store:
        assert store.n_bytes == n
        first, band = next(store.bands("w"))
        assert (first, band.shape) == (0, (4 * 2**20 // 100, 100))
        assert not store.read("w", n - 10, n).any()
        with pytest.raises(
            Fp8DebugError, match=r"tensor w has 50,000,000,000 bytes, and tensors that are read at once"
        ):
            store.whole("w")


def test_lines_that_begin_within_a_byte_are_refused(raw: Raw) -> None:
    path = raw({"w": {"dtype": "F4", "shape": [4, 3], "data_offsets": [0, 6]}}, bytes(6))
    with open_store(path) as store, pytest.raises(Fp8DebugError, match="lines do not begin at whole bytes"):
        list(store.bands("w"))


def test_an_empty_tensor_has_no_bands(raw: Raw) -> None:
    path = raw({"w": {"dtype": "F32", "shape": [1 << 31, 0], "data_offsets": [0, 0]}})
    with open_store(path) as store:
        assert list(store.bands("w")) == [] and list(store.chunks("w")) == []
