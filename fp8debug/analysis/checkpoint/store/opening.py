"""From a path to the store that reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fp8debug.analysis.checkpoint.store.base import Store
from fp8debug.analysis.checkpoint.store.safetensors import SafetensorsStore
from fp8debug.errors import Fp8DebugError

CONFIGS = ("config.json", "hf_quant_config.json", "quantization_config.json", "quantize_config.json")


def open_store(path: str | Path) -> Store:
    """Open a checkpoint: headers alone are read.

    Raises:
        Fp8DebugError: there is none, or its headers are damaged.
    """
    path = Path(path)
    if path.is_file():
        return SafetensorsStore(path, [path], _configs(path.parent))
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise Fp8DebugError(f"{path} holds no checkpoint")
    return SafetensorsStore(path, files, _configs(path))


def _configs(folder: Path) -> Mapping[str, Mapping[str, Any]]:
    return {name: json.loads((folder / name).read_text("utf-8")) for name in CONFIGS if (folder / name).is_file()}
