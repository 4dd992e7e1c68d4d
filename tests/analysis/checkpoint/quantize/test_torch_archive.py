"""Files of torch.save that are written without torch, read by torch."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from fp8debug.analysis.checkpoint.quantize import quantize_checkpoint
from fp8debug.analysis.checkpoint.quantize.torch_archive import write_torch_archive
from fp8debug.analysis.checkpoint.store.writing import WrittenTensor
from fp8debug.formats import E4M3, decode

TE = "transformer_engine.pytorch.tensor"
REBUILDING = {
    "current": ("float8_tensor", "_make_float8_tensor_in_reduce_ex"),
    "block": ("float8_blockwise_tensor", "_make_float8_blockwise_tensor_in_reduce_ex"),
    "mxfp8": ("mxfp8_tensor", "_make_mxfp8_tensor_in_reduce_ex"),
}


class DType:
    """Stands for the enum of Transformer Engine's extension."""

    number: int

    def __setstate__(self, state: int) -> None:
        self.number = state


@pytest.fixture
def transformer_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions that give back what they are called with."""
    made = {name: types.ModuleType(name) for name in ("transformer_engine", "transformer_engine.pytorch", TE)}
    for module, function in REBUILDING.values():
        made[f"{TE}.{module}"] = types.ModuleType(module)
        setattr(made[f"{TE}.{module}"], function, lambda *given: given)
    made["transformer_engine_torch"] = types.ModuleType("transformer_engine_torch")
    made["transformer_engine_torch"].DType = DType  # type: ignore[attr-defined]
    for name, made_module in made.items():
        monkeypatch.setitem(sys.modules, name, made_module)


def test_plain_tensors_pass_torchs_own_check(tmp_path: Path) -> None:
    arrays: dict[str, tuple[str, Any]] = {
        "a.weight": ("F32", np.arange(6, dtype=np.float32).reshape(2, 3)),
        "b": ("BF16", np.arange(3).astype(ml_dtypes.bfloat16)),
        "steps": ("I64", np.array(7)),
        "none": ("F16", np.zeros((0, 4), np.float16)),
    }
    tensors = [
        WrittenTensor(name, dtype, array.shape, partial(list, (array,))) for name, (dtype, array) in arrays.items()
    ]
    write_torch_archive(tmp_path / "m.pt", tensors, {})
    read = torch.load(tmp_path / "m.pt", weights_only=True)
    assert list(read) == list(arrays)
    for name, (_, array) in arrays.items():
        assert read[name].shape == array.shape
        assert np.array_equal(read[name].float().numpy(), array.astype(np.float32))
    assert read["b"].dtype == torch.bfloat16


@pytest.mark.parametrize("recipe", REBUILDING)
def test_parameters_are_what_transformer_engine_rebuilds(
    recipe: str, written: Callable[..., Path], tmp_path: Path, transformer_engine: None
) -> None:
    w = np.random.default_rng(0).normal(0, 0.02, (256, 384)).astype(np.float32)
    source = written({"fc.weight": ("BF16", w), "fc.bias": ("F32", np.ones(256))}, folder="source")
    done = quantize_checkpoint(source, tmp_path / "out", recipe, "te")
    assert "model.pt" in done.files
    read = torch.load(tmp_path / "out" / "model.pt", weights_only=False)
    assert read.keys() == {"fc.weight", "fc.bias"} and read["fc.bias"].tolist() == [1.0] * 256
    given = read["fc.weight"]
    codes, scale_inv, element, dtype, shape = (
        given[i] for i in {"current": (0, 2, 1, 3, 4), "block": (1, 2, 5, 6, 0), "mxfp8": (0, 1, 4, 5, 6)}[recipe]
    )
    assert (element.number, dtype, shape) == (7, torch.bfloat16, torch.Size([256, 384]))
    assert (codes.dtype, tuple(codes.shape)) == (torch.uint8, (256, 384))
    # As Transformer Engine pads scales: a multiple of 4 across, and of 128 down where each line has its own.
    assert tuple(scale_inv.shape) == {"current": (1,), "block": (2, 4), "mxfp8": (256, 12)}[recipe]
    scales = torch.exp2(scale_inv.float() - 127) if recipe == "mxfp8" else scale_inv
    if recipe == "block":
        scales = scales[:, :3].repeat_interleave(128, 0).repeat_interleave(128, 1)
    elif recipe == "mxfp8":
        scales = scales.repeat_interleave(32, 1)
    values = decode(codes.numpy(), E4M3) * scales.numpy()
    assert np.sqrt(np.mean((values - w) ** 2)) < 0.03 * np.sqrt(np.mean(w**2))


def test_stacks_are_kept_and_one_file_may_be_named(written: Callable[..., Path], tmp_path: Path) -> None:
    tensors = {"fc.weight": ("F32", np.ones((32, 32))), "experts.w1.weight": ("F32", np.ones((2, 32, 32)))}
    source = written(tensors, folder="source")
    done = quantize_checkpoint(source, tmp_path / "m.pt", "current", "te")
    assert done.files == ("m.pt",)
    assert [(one.name, one.why) for one in done.kept] == [("experts.w1.weight", "a stack of matrices")]
