"""Checkpoints read in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fp8debug.analysis.checkpoint.convention import read_convention
from fp8debug.analysis.checkpoint.records import Convention, Quantised
from fp8debug.analysis.checkpoint.store import open_store
from fp8debug.analysis.checkpoint.values import Dequantiser


@dataclass(frozen=True)
class Read:
    """What became of a checkpoint."""

    convention: Convention
    values: Mapping[str, npt.NDArray[np.float32]]
    """Of everything quantised, lines x length."""

    def __getitem__(self, name: str) -> Quantised:
        return next(one for one in self.convention.quantised if one.name == name)

    @property
    def said(self) -> str:
        """Everything that was assumed."""
        return "\n".join(one.message for one in self.convention.assumptions)


@pytest.fixture
def read(written: Callable[..., Path]) -> Callable[..., Read]:
    """`read({name: (dtype, array)}, config, dialect=, **files)`: written, and read again.

    `config` is the quantization_config of config.json, the others are files beside it by name without its ending.
    """

    def call(
        tensors: Mapping[str, tuple[str, Any]],
        config: Any = None,
        dialect: str | None = None,
        metadata: Mapping[str, str] | None = None,
        **files: Any,
    ) -> Read:
        configs = {f"{name}.json": value for name, value in files.items()}
        if config is not None:
            configs["config.json"] = {"quantization_config": config}
        with open_store(written(tensors, configs=configs, metadata=metadata)) as store:
            convention = read_convention(store, dialect)
            values = {
                one.name: np.concatenate([part for _, part in Dequantiser(store, one).bands()])
                for one in convention.quantised
            }
        return Read(convention, values)

    return call
