"""Extra state as versions of Transformer Engine write it, and what is taken from it."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fp8debug.analysis.checkpoint.store import open_store
from fp8debug.analysis.checkpoint.store.extra_state import extra_state_tensors, is_extra_state
from fp8debug.analysis.checkpoint.store.torch_file import open_torch_file
from fp8debug.errors import Fp8DebugError

STATE: dict[str, Any] = {
    "scale_fwd": torch.tensor([448.0, 2.5, 1.0]),
    "amax_history_fwd": torch.arange(12.0).reshape(4, 3),
    "scale_bwd": torch.tensor([57344.0, 1.0]),
    "amax_history_bwd": torch.zeros(4, 2),
    "extra_fp8_variables": {"num_gemms": 1, "fp8_max_fwd": 448.0},
}


def of_torch_save(value: Any) -> io.BytesIO:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream


def as_tensor(raw: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)


FORWARD = {key: value for key, value in STATE.items() if key.endswith("_fwd")}
BACKWARD = {key: value for key, value in STATE.items() if key.endswith("_bwd")}
WRITTEN = {
    "pickled since 1.8": pickle.dumps(STATE),
    "torch.save before": of_torch_save(STATE).getvalue(),
    "bytes in torch.save": of_torch_save(of_torch_save(STATE)).getvalue(),
    "tensor in torch.save": of_torch_save(as_tensor(pickle.dumps(STATE))).getvalue(),
    "operations": pickle.dumps({"forward": FORWARD, "backward": BACKWARD}),
}


@pytest.mark.parametrize("way", WRITTEN)
def test_scales_and_histories_are_found_however_they_were_written(way: str) -> None:
    found = extra_state_tensors(WRITTEN[way])
    assert found.keys() == {"scale_fwd", "amax_history_fwd", "scale_bwd", "amax_history_bwd"}
    for name, values in found.items():
        assert values.dtype == np.float32
        assert np.array_equal(values, STATE[name].numpy())


@pytest.mark.parametrize("raw", [b"", pickle.dumps(None), of_torch_save(None).getvalue(), pickle.dumps({"recipe": 1})])
def test_where_nothing_was_kept_there_is_nothing(raw: bytes) -> None:
    assert extra_state_tensors(raw) == {}


def test_halves_and_views_become_float32() -> None:
    state = {"scale_fwd": torch.tensor([1.5, 0.1]).bfloat16(), "scale_bwd": torch.tensor([[1.0, 2.0], [3.0, 4.0]]).t()}
    found = extra_state_tensors(pickle.dumps(state))
    assert found["scale_fwd"].tolist() == [1.5, 0.10009765625]
    assert found["scale_bwd"].tolist() == [[1.0, 3.0], [2.0, 4.0]]


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"hello", "not as Transformer Engine writes it"),
        (pickle.dumps([1]), "expected a dict"),
        (WRITTEN["pickled since 1.8"][:-40], "damaged pickle"),
        (WRITTEN["torch.save before"][:-40], "damaged zip archive"),
        (pickle.dumps({"scale_fwd": torch.tensor([1, 2])}), "dtype I64"),
    ],
)
def test_what_is_no_extra_state_is_said(raw: bytes, words: str) -> None:
    with pytest.raises(Fp8DebugError, match=words):
        extra_state_tensors(raw, "fc1._extra_state")


@pytest.mark.parametrize("state", [of_torch_save(STATE), as_tensor(WRITTEN["pickled since 1.8"])])
def test_a_checkpoint_shows_them_as_tensors(tmp_path: Path, state: object) -> None:
    torch.save({"fc1.weight": torch.ones(2, 2), "fc1._extra_state": state, "fc2._extra_state": None}, tmp_path / "m.pt")
    with open_torch_file(tmp_path / "m.pt") as store:
        assert list(store.tensors) == ["fc1.weight", *(f"fc1._extra_state#{name}" for name in list(STATE)[:4])]
        assert store.whole("fc1._extra_state#scale_fwd").view("<f4").tolist() == [448.0, 2.5, 1.0]
        assert store.read("fc1._extra_state#amax_history_fwd", 8, 16).view("<f4").tolist() == [2.0, 3.0]
        assert store.problems == ()


def test_a_damaged_one_is_a_problem_and_the_rest_is_read(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2), "fc._extra_state": as_tensor(b"hello")}, tmp_path / "m.pt")
    with open_torch_file(tmp_path / "m.pt") as store:
        assert store.tensors["w"].shape == (2,)
        (problem,) = store.problems
        assert problem.startswith("not read: fc._extra_state is not as Transformer Engine writes it")


def test_names_of_extra_states() -> None:
    assert is_extra_state("decoder.layers.mlp.fc1._extra_state/shard_0_1")
    assert is_extra_state("_extra_state")
    assert not is_extra_state("my_extra_state.weight")


def test_safetensors_files_show_them_too(written: Callable[..., Path]) -> None:
    raw = np.frombuffer(WRITTEN["pickled since 1.8"], np.uint8)
    tensors = {"fc.weight": ("F32", np.ones(3)), "fc._extra_state": ("U8", raw), "n._extra_state": ("U8", raw[:0])}
    with open_store(written(tensors)) as store:
        assert set(store.tensors) == {"fc.weight", *(f"fc._extra_state#{name}" for name in list(STATE)[:4])}
        assert store.whole("fc._extra_state#scale_bwd").view("<f4").tolist() == [57344.0, 1.0]
        assert store.whole("fc.weight").view("<f4").tolist() == [1.0, 1.0, 1.0]
        assert store.problems == ()
