"""Pairs in memory: codes and scales that a test has made, and the reference they were made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from fp8debug.analysis.checkpoint.records import Quantised, Scale, Stored
from fp8debug.analysis.checkpoint.reference.lines import Lines
from fp8debug.analysis.checkpoint.reference.pair import Pair
from fp8debug.analysis.checkpoint.store import Store

Array = npt.NDArray[Any]
PairOf = Callable[..., Pair]

_DTYPES: Mapping[str, Any] = {
    "F32": np.float32, "BF16": ml_dtypes.bfloat16, "F16": np.float16, "E8M0": ml_dtypes.float8_e8m0fnu,
    "E4M3": ml_dtypes.float8_e4m3fn, "U8": np.uint8,
}  # fmt: skip
_STORED = {"E8M0": "U8", "E4M3": "F8_E4M3"}
_CODES = {
    "E4M3": "F8_E4M3", "E5M2": "F8_E5M2", "E4M3FNUZ": "F8_E4M3FNUZ", "E5M2FNUZ": "F8_E5M2FNUZ", "E2M1": "U8",
}  # fmt: skip


class MemoryStore(Store):
    """Tensors as bytes in memory."""

    def __init__(self) -> None:
        self.path, self.configs, self.metadata = Path("memory"), {}, {}
        self.tensors: dict[str, Stored] = {}
        self._bytes: dict[str, Array] = {}

    def add(self, name: str, dtype: str, array: Array) -> None:
        self.tensors[name] = Stored(name, dtype, array.shape, "memory")
        self._bytes[name] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def read(self, name: str, first: int, last: int) -> Array:
        return self._bytes[name][first:last]

    @property
    def n_bytes(self) -> int:
        return sum(array.size for array in self._bytes.values())

    def close(self) -> None:
        pass


class MemoryLines(Lines):
    """A reference in memory."""

    def __init__(self, x: Array) -> None:
        self._x = x.reshape(-1, x.shape[-1]).astype(np.float32)
        self.lines, self.length = self._x.shape

    def values(self, first: int, last: int) -> Array:
        return self._x[first:last]


@pytest.fixture
def pair_of() -> PairOf:
    """`pair_of(x, codes, scales, fmt="E4M3", block=(128, 128))`: a pair in memory.

    codes: uint8, (..., N, K), packed where the format has 4 bits. scales: (N/b, K/b) numbers, or None; `encoding` is
    theirs, `layout` is seen from the shape where it is not given. `second`: a scale of the tensor, that multiplies.
    `others`: scales of other layers, by their names.
    """

    def build(
        x: Array,
        codes: Array,
        scales: Array | float | None,
        *,
        fmt: str = "E4M3",
        block: tuple[int, int] | None = None,
        encoding: str = "F32",
        layout: str | None = None,
        divides: bool = False,
        second: float | None = None,
        others: Mapping[str, Array | float] | None = None,
        name: str = "layers.1.q_proj",
    ) -> Pair:
        store, records = MemoryStore(), []
        if codes.dtype == np.uint8 and fmt == "E2M1":
            pairs = codes.reshape(*codes.shape[:-1], -1, 2)
            packed = pairs[..., 0] | pairs[..., 1] << 4
        else:
            packed = codes
        store.add(f"{name}.weight", _CODES[fmt], packed)
        if scales is not None:
            for key, values in {f"{name}.weight_scale": scales, **(others or {})}.items():
                array = np.asarray(values)
                as_stored = array if array.dtype == np.uint8 else array.astype(_DTYPES[encoding])
                store.add(key, _STORED.get(encoding, encoding), np.atleast_1d(as_stored))
            shape = store.tensors[f"{name}.weight_scale"].shape
            kind = layout or ("block" if block else "tensor" if np.prod(shape) == 1 else "line")
            records.append(Scale(f"{name}.weight_scale", "weight", encoding, shape, divides, kind, block, module=name))
        if second is not None:
            store.add(f"{name}.weight_scale_2", "F32", np.array([second], np.float32))
            records.append(Scale(f"{name}.weight_scale_2", "tensor", "F32", (1,), False, "tensor", module=name))
        quantised = Quantised(f"{name}.weight", name, fmt, x.shape, tuple(records), is_packed=fmt == "E2M1")
        plain = Stored(f"{name}.weight", "F32", x.shape, "reference")
        return Pair(store, quantised, MemoryStore(), plain, MemoryLines(x))

    return build
