"""Checkpoints made by safetensors' own writer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import safetensors

Array = npt.NDArray[Any]
Written = Callable[..., Path]

_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "U8": "uint8", "I8": "int8",
    "I64": "int64", "U32": "uint32", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip
_DTYPES = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz, "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu, "U8": np.uint8, "I8": np.int8, "I64": np.int64, "U32": np.uint32,
}  # fmt: skip


def as_bytes(dtype: str, array: Array) -> Array:
    """The array in that dtype, as bytes: uint8 arrays are taken for codes already, all others are cast by ml_dtypes."""
    array = np.asarray(array)
    if array.dtype == np.uint8:
        return np.ascontiguousarray(array)
    with np.errstate(all="ignore"):
        return np.ascontiguousarray(array.astype(_DTYPES[dtype]))


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """`written({name: (dtype, array)}, configs={"config.json": {...}})`: the folder of a checkpoint of one file.

    uint8 arrays are raw codes whatever the dtype; `file=` names the file, `metadata=` the header's texts, `folder=`
    another folder below the temporary one.
    """

    def write(
        tensors: Mapping[str, tuple[str, Array]],
        *,
        configs: Mapping[str, Any] | None = None,
        file: str = "model.safetensors",
        folder: str = "checkpoint",
        metadata: Mapping[str, str] | None = None,
    ) -> Path:
        import json

        path = tmp_path / folder
        path.mkdir(parents=True, exist_ok=True)
        specs, kept = {}, []
        for name, (dtype, array) in tensors.items():
            shape = list(np.shape(array))
            data = as_bytes(dtype, array)
            kept.append(data)
            specs[name] = safetensors.TensorSpec(
                dtype=_NAMES[dtype], shape=shape, data_ptr=data.ctypes.data, data_len=data.nbytes
            )
        safetensors.serialize_file(specs, path / file, dict(metadata) if metadata else None)
        for config, value in (configs or {}).items():
            (path / config).write_text(json.dumps(value))
        return path

    return write
