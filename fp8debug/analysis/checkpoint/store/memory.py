"""A few small tensors that come from somewhere else than a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fp8debug.analysis.checkpoint.records import Stored
from fp8debug.analysis.checkpoint.store.base import Store
from fp8debug.formats import Uint8Array


class MemoryStore(Store):
    """Tensors that are at hand.

    Args:
        path: where they come from.
        arrays: dtype, in the spelling of `Stored`, and an array of that many bits an element, by name.
    """

    def __init__(self, path: Path, arrays: Mapping[str, tuple[str, npt.NDArray[Any]]]) -> None:
        self.path = path
        self.configs, self.metadata = {}, {}
        self.tensors = {name: Stored(name, dtype, array.shape, str(path)) for name, (dtype, array) in arrays.items()}
        self._bytes = {
            name: np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8) for name, (_, array) in arrays.items()
        }

    def read(self, name: str, first: int, last: int) -> Uint8Array:
        """As in `Store`."""
        return self._bytes[name][first:last].copy()

    @property
    def n_bytes(self) -> int:
        """As in `Store`."""
        return sum(len(held) for held in self._bytes.values())

    def close(self) -> None:
        """Nothing is open."""
