"""Batch files, and what a model's forward takes of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fp8debug.errors import UsageError
from fp8debug.hooks.inference.batch import Batch, fitted
from fp8debug.hooks.inference.batch_file import read_batch

IDS = [[1, 2, 3], [4, 5, 6]]
WRITERS: dict[str, Callable[[Path], Any]] = {
    "b.safetensors": lambda path: save_file({"input_ids": torch.tensor(IDS, dtype=torch.int32)}, path),
    "b.npz": lambda path: np.savez(path, input_ids=np.array(IDS, np.uint16)),
    "b.json": lambda path: path.write_text(json.dumps({"input_ids": IDS})),
    "b.pt": lambda path: torch.save({"input_ids": torch.tensor(IDS)}, path),
}


@pytest.mark.parametrize("name", WRITERS)
def test_named_tensors(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    batch = read_batch(tmp_path / name)
    assert batch.args == () and list(batch.kwargs) == ["input_ids"]
    tokens = batch.tokens
    assert tokens is not None and tokens.dtype is torch.int64 and tokens.tolist() == IDS
    assert batch.text == "input_ids 2x3"


def test_one_array_is_the_first_argument_and_one_row_of_ids_a_batch_of_one(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[0.5, 2.0]]))
    (x,) = read_batch(tmp_path / "x.npy").args
    assert x.dtype is torch.float32 and x.tolist() == [[0.5, 2.0]]
    (tmp_path / "ids.json").write_text("[7, 8, 9]")
    assert read_batch(tmp_path / "ids.json").args[0].tolist() == [[7, 8, 9]]
    (tmp_path / "named.json").write_text('{"input_ids": [7, 8], "attention_mask": [1, 0], "labels": [7, 8]}')
    named = read_batch(tmp_path / "named.json")
    assert {key: value.shape for key, value in named.kwargs.items()} == dict.fromkeys(named.kwargs, (1, 2))
    assert named.labels is not None and named.mask is not None


def broken_pickle(path: Path) -> None:
    torch.save({"x": Batch()}, path)  # code that a file must not bring along


@pytest.mark.parametrize(
    ("name", "write", "message"),
    [
        ("b.csv", lambda path: path.write_text("1,2"), r"unknown kind '\.csv'; expected \.safetensors"),
        ("b.npy", lambda path: None, "cannot be read: No such file"),
        ("b.json", lambda path: path.write_text("{"), r"not a readable \.json file"),
        ("b.json", lambda path: path.write_text("{}"), "it is empty"),
        ("b.json", lambda path: path.write_text('{"a": "text"}'), "a is no array of numbers"),
        ("b.json", lambda path: path.write_text('{"a": [[1], [2, 3]]}'), "a is no array of numbers"),
        ("b.pt", broken_pickle, r"not a readable \.pt file: Weights only load failed"),
        ("b.npy", lambda path: np.save(path, np.array([{}], object)), r"not a readable \.npy file"),
        ("b.safetensors", lambda path: path.write_bytes(b"abc"), r"not a readable \.safetensors file"),
    ],
)
def test_what_is_no_batch(tmp_path: Path, name: str, write: Callable[[Path], Any], message: str) -> None:
    write(tmp_path / name)
    with pytest.raises(UsageError, match=message):
        read_batch(tmp_path / name)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4, dtype=torch.bfloat16)

    def forward(self, input_ids: Tensor, scale: Tensor | None = None) -> Tensor:
        y: Tensor = self.linear(input_ids)
        return y


def test_what_forward_takes() -> None:
    """Labels that it does not take are set aside; floats follow the model's dtype, whole numbers do not."""
    labels = torch.tensor([0])
    made = fitted(
        Batch((), {"input_ids": torch.tensor([1]), "scale": torch.ones(1), "labels": labels}, labels), Model()
    )
    assert {name: t.dtype for name, t in made.kwargs.items()} == {"input_ids": torch.int64, "scale": torch.bfloat16}
    assert made.labels is not None and made.text == "input_ids 1, scale 1, labels 1"
    with pytest.raises(UsageError, match=r"forward takes input_ids, scale, .*did you mean input_ids for inputs_id"):
        fitted(Batch((), {"inputs_id": torch.tensor([1])}), Model())
