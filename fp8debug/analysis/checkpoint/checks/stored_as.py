"""What the file says of every module: codes, or numbers in high precision."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from fp8debug.analysis.checkpoint.checks.hit import Subject
from fp8debug.analysis.checkpoint.checks.names import starred

_EXPERT = re.compile(r"(\bexperts?[._])\d+(?=\.|$)")


@dataclass(frozen=True, slots=True)
class StoredAs:
    """A matrix, or a stack of them."""

    module: str
    tensor: str
    dtype: str
    """As stored; of packed codes with their format: `U8 (E2M1)`."""
    shape: tuple[int, ...]
    """Of the values."""
    is_codes: bool
    pattern: str
    """The module's name with stars for its numbers."""


def matrices(subject: Subject) -> list[StoredAs]:
    """All matrices of the checkpoint that are weights, in the order of the files."""
    tensors = subject.store.tensors
    found = []
    for one in subject.convention.quantised:
        dtype = tensors[one.name].dtype
        dtype = dtype if dtype.startswith("F8") else f"{dtype} ({one.fmt})"
        found.append(StoredAs(one.module, one.name, dtype, one.shape, True, starred(one.module)[0]))
    for name in subject.convention.plain:
        stored = tensors[name]
        if len(stored.shape) > 1 and min(stored.shape[-2:]) > 1 and stored.dtype in ("F64", "F32", "F16", "BF16"):
            module = name.removesuffix(".weight")
            found.append(StoredAs(module, name, stored.dtype, stored.shape, False, starred(module)[0]))
    return found


def one_of_all_experts(modules: Iterable[StoredAs]) -> list[StoredAs]:
    """The same without repetition: of the experts of a layer the first alone."""
    kept: dict[tuple[str, bool], StoredAs] = {}
    for one in modules:
        kept.setdefault((_EXPERT.sub(r"\1*", one.module), one.is_codes), one)
    return list(kept.values())
