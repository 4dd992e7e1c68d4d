"""Quantised tensors that Python classes hold, taken apart."""

from __future__ import annotations

import pickle
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fp8debug.analysis.checkpoint.store.torch_file import open_torch_file

TE = "transformer_engine.pytorch.tensor"
Rebuilding = Callable[[str, tuple[Any, ...]], object]


def add_module(monkeypatch: pytest.MonkeyPatch, module: types.ModuleType) -> None:
    """Make it one that can be imported, with the packages above it."""
    above = module.__name__.split(".")
    for n in range(1, len(above)):
        monkeypatch.setitem(sys.modules, ".".join(above[:n]), types.ModuleType(above[n - 1]))
    monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.fixture
def rebuilding(monkeypatch: pytest.MonkeyPatch) -> Rebuilding:
    """`rebuilding("module.function", arguments)`: an object that pickles as Transformer Engine's tensors do."""

    def make(path: str, arguments: tuple[Any, ...]) -> object:
        module_name, _, name = f"{TE}.{path}".rpartition(".")
        module = sys.modules.get(module_name) or types.ModuleType(module_name)
        function = getattr(module, name, None)
        if function is None:
            function = types.FunctionType((lambda *_: None).__code__, {})
            function.__module__, function.__qualname__ = module_name, name
            setattr(module, name, function)
            add_module(monkeypatch, module)

        class Quantised:
            def __reduce__(self) -> tuple[object, ...]:
                return function, arguments

        return Quantised()

    return make


class DType:
    """As pybind11 pickles an enum: a new object, then its state, a number."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __getstate__(self) -> Any:
        return self._number


CODES = torch.arange(6, dtype=torch.uint8).reshape(2, 3)


@pytest.mark.parametrize(
    ("arguments", "dtype"),
    [
        ((CODES, DType(6), torch.tensor([0.5]), torch.bfloat16), "F8_E4M3"),
        ((CODES, DType(7), torch.tensor([0.5]), torch.bfloat16), "F8_E5M2"),
        ((CODES, DType(7), torch.tensor([0.5]), torch.bfloat16, CODES.shape), "F8_E4M3"),
        ((CODES, DType(8), torch.tensor([0.5]), torch.bfloat16, CODES.shape, None), "F8_E5M2"),
    ],
)
def test_float8_of_transformer_engine(
    tmp_path: Path, rebuilding: Rebuilding, arguments: tuple[Any, ...], dtype: str
) -> None:
    weight = rebuilding("float8_tensor._make_float8_tensor_in_reduce_ex", arguments)
    torch.save({"fc.weight": weight}, tmp_path / "m.pt")
    with open_torch_file(tmp_path / "m.pt") as store:
        assert list(store.tensors) == ["fc.weight", "fc.weight#scale_inv"]
        assert store.tensors["fc.weight"].dtype == dtype
        assert store.whole("fc.weight").tolist() == [0, 1, 2, 3, 4, 5]
        assert store.whole("fc.weight#scale_inv").view("<f4").tolist() == [0.5]


def test_a_method_that_is_looked_up_by_name_is_known_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType(f"{TE}.float8_tensor")

    class Float8Tensor:
        @classmethod
        def _make_in_reduce_ex(cls, *_: object) -> None: ...

        def __reduce__(self) -> tuple[object, ...]:
            return Float8Tensor._make_in_reduce_ex, (CODES, DType(6), torch.tensor([2.0]), torch.float32)

    Float8Tensor.__module__, Float8Tensor.__qualname__ = module.__name__, "Float8Tensor"
    module.Float8Tensor = Float8Tensor  # type: ignore[attr-defined]
    add_module(monkeypatch, module)
    for protocol in (2, 4):
        torch.save({"w": Float8Tensor()}, tmp_path / "m.pt", pickle_module=pickle, pickle_protocol=protocol)
        with open_torch_file(tmp_path / "m.pt") as store:
            assert list(store.tensors) == ["w", "w#scale_inv"]


def test_padding_of_scales_is_left_out(tmp_path: Path, rebuilding: Rebuilding) -> None:
    """MXFP8 pads to 128 x 4 numbers, blocks of 128 x 128 to four columns; 1 x 128 stores columns first."""
    exponents = torch.arange(128 * 4, dtype=torch.uint8).reshape(128, 4)
    squares = torch.arange(2 * 4, dtype=torch.float32).reshape(2, 4)
    rows = torch.arange(2 * 132, dtype=torch.float32).reshape(2, 132)
    codes = torch.zeros(130, 192, dtype=torch.uint8)
    e4m3, bf16 = DType(7), torch.bfloat16
    weights = {
        "mx": rebuilding(
            "mxfp8_tensor._make_mxfp8_tensor_in_reduce_ex",
            (codes[:5, :96], exponents, None, None, e4m3, bf16, (5, 96), None, False),
        ),
        "square": rebuilding(
            "float8_blockwise_tensor._make_float8_blockwise_tensor_in_reduce_ex",
            (codes.shape, codes, squares, None, None, e4m3, bf16, None, True, None),
        ),
        "row": rebuilding(
            "float8_blockwise_tensor._make_float8_blockwise_tensor_in_reduce_ex",
            (codes.shape, codes, rows, None, None, e4m3, bf16, None, False, None),
        ),
        "swizzled": rebuilding(
            "mxfp8_tensor._make_mxfp8_tensor_in_reduce_ex",
            (codes[:5, :96], exponents, None, None, e4m3, bf16, (5, 96), None, True),
        ),
    }
    torch.save(weights, tmp_path / "m.pt")
    with open_torch_file(tmp_path / "m.pt") as store:
        mx = store.tensors["mx#scale_inv"]
        assert (mx.dtype, mx.shape) == ("F8_E8M0", (5, 3))
        assert np.array_equal(store.whole("mx#scale_inv").reshape(5, 3), exponents[:5, :3].numpy())
        assert store.tensors["square#scale_inv"].shape == (2, 2)
        assert store.whole("square#scale_inv").view("<f4").tolist() == [0.0, 1.0, 4.0, 5.0]
        assert store.tensors["row#scale_inv"].shape == (130, 2)
        assert store.whole("row#scale_inv").view("<f4")[:4].tolist() == [0.0, 132.0, 1.0, 133.0]
        assert store.problems == (
            "not read: swizzled: its scales are in the order of a GEMM (swizzled), which is not read",
        )


class Wrapping(torch.Tensor):
    """A tensor of tensors, as torchao's are: torch pickles the attributes of such a class."""

    @staticmethod
    def __new__(cls, dtype: torch.dtype, shape: tuple[int, ...], **attributes: Any) -> Wrapping:
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype)

    def __init__(self, dtype: torch.dtype, shape: tuple[int, ...], **attributes: Any) -> None:
        self.__dict__.update(attributes)

    @classmethod
    def __torch_dispatch__(cls, *_: object) -> Any:
        raise NotImplementedError


def test_classes_of_torchao_are_taken_apart(tmp_path: Path) -> None:
    w = torch.arange(8.0).reshape(2, 4)
    scale = torch.tensor([[0.5], [2.0]])
    inner = Wrapping(torch.bfloat16, (2, 4), float8_data=w.to(torch.float8_e4m3fn), scale=scale, transposed=False)
    weights = {
        "now": Wrapping(torch.bfloat16, (2, 4), qdata=w.to(torch.float8_e4m3fn), scale=scale, block_size=[1, 4]),
        "nested": Wrapping(torch.bfloat16, (2, 4), tensor_impl=inner, block_size=(1, 4)),
        "training": Wrapping(torch.bfloat16, (2, 4), _data=w.to(torch.float8_e4m3fn), _scale=scale),
        "odd": Wrapping(torch.bfloat16, (2, 4), one=w, two=scale),
        "whole": Wrapping(torch.float32, (2, 4), _local_tensor=w),
        "part": Wrapping(torch.float32, (4, 4), _local_tensor=w),
        "none": Wrapping(torch.bfloat16, (2, 4), block_size=[1, 4]),
    }
    torch.save(weights, tmp_path / "m.pt")
    codes = w.to(torch.float8_e4m3fn).reshape(-1).view(torch.uint8).tolist()
    with open_torch_file(tmp_path / "m.pt") as store:
        assert list(store.tensors) == [
            "now", "now#scale", "nested", "nested#scale", "training", "training#_scale", "odd#one", "odd#two", "whole",
        ]  # fmt: skip
        for name in ("now", "nested", "training"):
            assert store.tensors[name].dtype == "F8_E4M3"
            assert store.whole(name).tolist() == codes
        assert store.whole("training#_scale").view("<f4").tolist() == [0.5, 2.0]
        part, none = store.problems
        assert part.startswith("not read: part: it is one rank's part [2, 4] of a DTensor [4, 4]; save it with")
        assert none.startswith("not read: none: it is a ") and "cannot be told apart" in none
