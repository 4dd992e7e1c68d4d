"""Checkpoints of which there are headers alone: names, dtypes and shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fp8debug.analysis.checkpoint.checks.hit import Subject
from fp8debug.analysis.checkpoint.convention import read_convention
from fp8debug.analysis.checkpoint.facts import Facts
from fp8debug.analysis.checkpoint.records import Convention, Quantised, Scale, Stored
from fp8debug.analysis.checkpoint.store import Store, n_bytes_of
from fp8debug.formats import Uint8Array

Headers = Mapping[str, tuple[str, tuple[int, ...]]]
SubjectOf = Callable[..., Subject]
_KINDS = {"weight_scale_inv": "weight", "weight_scale": "weight", "input_scale": "input", "k_scale": "k"}


class HeaderStore(Store):
    """Tensors of zeros, or of the bytes that were given."""

    def __init__(self, headers: Headers, configs: Mapping[str, Any], contents: Mapping[str, np.ndarray]) -> None:
        self.path = Path("headers")
        self.tensors = {name: Stored(name, dtype, shape, "model") for name, (dtype, shape) in headers.items()}
        self.configs = dict(configs)
        self.metadata = {}
        self._contents = contents

    def read(self, name: str, first: int, last: int) -> Uint8Array:
        if name in self._contents:
            return np.frombuffer(self._contents[name].tobytes(), np.uint8)[first:last]
        return np.zeros(last - first, np.uint8)

    @property
    def n_bytes(self) -> int:
        return sum(map(n_bytes_of, self.tensors.values()))

    def close(self) -> None:
        pass


@pytest.fixture
def subject_of() -> SubjectOf:
    """`subject_of(headers, excluded=(...), block=(128, 128), tp=(8,))`: F8 weights with the scales beside them."""

    def make(
        headers: Headers,
        *,
        configs: Mapping[str, Any] | None = None,
        contents: Mapping[str, np.ndarray] | None = None,
        tp: tuple[int, ...] = (),
        consumer: str | None = None,
        facts: Facts | None = None,
        block: tuple[int, int] = (128, 128),
        dialect: str = "hf-fp8",
        **more: Any,
    ) -> Subject:
        store = HeaderStore(headers, configs or {}, contents or {})
        convention = _read(headers, block, dialect, more)
        return Subject(store, convention, facts or Facts({}, {}, {}), tp, consumer)

    return make


@pytest.fixture
def read_subject() -> SubjectOf:
    """`read_subject(headers, configs={"config.json": {...}}, tp=(8,))`: read as any checkpoint is."""

    def make(
        headers: Headers,
        *,
        configs: Mapping[str, Any] | None = None,
        contents: Mapping[str, np.ndarray] | None = None,
        dialect: str | None = None,
        **more: Any,
    ) -> Subject:
        store = HeaderStore(headers, configs or {}, contents or {})
        return Subject(store, read_convention(store, dialect), Facts({}, {}, {}), **more)

    return make


def _read(headers: Headers, block: tuple[int, int], dialect: str, more: Mapping[str, Any]) -> Convention:
    scales = {name: kind for name in headers if (kind := _KINDS.get(name.rpartition(".")[2])) is not None}
    codes = [name for name, (dtype, _) in headers.items() if dtype.startswith("F8_E4") and name not in scales]
    quantised, used = [], set()
    for name in codes:
        module = name.removesuffix(".weight")
        found = [one for one in (f"{module}.weight_scale_inv", f"{module}.weight_scale") if one in headers]
        used.update(found)
        of = tuple(_scale(one, module, headers, block) for one in found[:1])
        quantised.append(Quantised(name, module, "E4M3", headers[name][1], of))
    orphans = [name for name, kind in scales.items() if kind == "weight" and name not in used]
    extra = [name for name in used if not any(scale.name == name for one in quantised for scale in one.scales)]
    others = tuple(
        Scale(name, kind, "F32", headers[name][1], False, "tensor", module=name.rpartition(".")[0])
        for name, kind in scales.items()
        if kind != "weight"
    )
    plain = tuple(name for name in headers if name not in codes and name not in scales)
    return Convention(
        dialect, dialect, "by hand", tuple(quantised), others, tuple(orphans), plain, unknown=tuple(extra), **more
    )


def _scale(name: str, module: str, headers: Headers, block: tuple[int, int]) -> Scale:
    dtype, shape = headers[name]
    layout = "block" if len(shape) > 1 else "tensor"
    return Scale(name, "weight", dtype, shape, False, layout, block if layout == "block" else None, module=module)
