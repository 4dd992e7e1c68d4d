"""Which weight an operand is: views share its storage, and copies of it are followed.

What is known of a storage is kept beside it and forgotten when it is freed; nothing is kept alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from fp8debug.hooks.backends.base import FoundLayer
from fp8debug.hooks.backends.dispatch.gemms import overloads
from fp8debug.hooks.transforms import unwrapped

_COPIES = ("_to_copy", "clone", "_reshape_copy", "copy_")
_SCALINGS = ("mul", "div", "clamp")
_GATHERS = ("index", "index_select")


def stored(tensor: Tensor) -> Tensor:
    """What this rank stores of a tensor: of a DTensor its local part, of one that a transform wraps what is inside."""
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = unwrapped(tensor)
    local = getattr(tensor, "_local_tensor", None)
    return tensor if local is None else local


def shares_storage(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors lie in one storage."""
    return storage_key(one) == storage_key(other)


def storage_key(tensor: Tensor) -> int:
    """Identifies the storage that a tensor lies in, for as long as it lives."""
    key: int = stored(tensor).untyped_storage()._cdata
    return key


class Place:
    """Where a tensor lies, remembered without being kept alive."""

    __slots__ = ("_alive", "_key", "_offset")

    def __init__(self, tensor: Tensor) -> None:
        tensor = stored(tensor)
        storage = tensor.untyped_storage()
        self._key = storage._cdata
        self._offset = tensor.storage_offset()
        self._alive = weakref.ref(storage)

    def holds(self, tensor: Tensor) -> bool:
        """Whether `tensor` begins there too: the same one, or turned."""
        tensor = stored(tensor)
        same = tensor.untyped_storage()._cdata == self._key and tensor.storage_offset() == self._offset
        return same and self._alive() is not None


@dataclass(frozen=True, slots=True)
class Source:
    """A weight, or a copy of it, that a stretch of a storage holds."""

    layers: tuple[FoundLayer, ...]
    """Layers that own the weight; several when it is shared, none when nobody asked for it."""
    start: int
    """Its first element in the storage, and the one behind its last."""
    end: int
    n_experts: int = 0
    """Size of the outermost dimension where that counts experts, as this stretch is laid out."""
    expert: int | None = None
    """The only expert that a copy holds."""
    is_batch: bool = False
    """Whether it was made from a weight of three dimensions."""

    def is_all_of(self, weight: Tensor) -> bool:
        """Whether this is the whole of `weight` and nothing else."""
        weight = stored(weight)
        return self.start == weight.storage_offset() and self.end == self.start + weight.numel()

    def expert_of(self, operand: Tensor) -> int | None:
        """Which expert a matrix is; None: not one alone."""
        if not self.n_experts or self.expert is not None:
            return self.expert
        size = (self.end - self.start) // self.n_experts
        return (operand.storage_offset() - self.start) // size if operand.numel() <= size else None


class Weights:
    """Sources by storage."""

    def __init__(self) -> None:
        self._sources: dict[int, tuple[weakref.ref[Any], list[Source]]] = {}

    def source(self, operand: Tensor) -> Source | None:
        """What `operand` was made of; None when no weight is known in its storage."""
        operand = stored(operand)
        known = self._sources.get(operand.untyped_storage()._cdata)
        if known is None or known[0]() is None:
            return None
        offset = operand.storage_offset()
        return next((s for s in known[1] if s.start <= offset < s.end), None)

    def add(self, weight: Tensor, layers: Sequence[FoundLayer]) -> None:
        """Know `weight`, as it is stored now, as that of `layers`."""
        weight = stored(weight)
        start = int(weight.storage_offset())
        n_experts = weight.shape[0] if weight.dim() == 3 and weight.is_contiguous() else 0
        self._enter(weight, Source(tuple(layers), start, start + weight.numel(), n_experts, is_batch=weight.dim() == 3))

    def follow(self, original: Tensor, made: Tensor, *, gathered: bool = False) -> None:
        """`made` holds the numbers of `original`, in another dtype or layout or times a factor."""
        source = self.source(original)
        if source is None:
            return
        original, made = stored(original), stored(made)
        if storage_key(made) == storage_key(original):
            return
        start = int(made.storage_offset())
        copy = replace(source, start=start, end=start + made.numel(), expert=source.expert_of(original))
        if gathered or (copy.expert is None and (made.dim() != 3 or made.shape[0] != source.n_experts)):
            copy = replace(copy, n_experts=0)
        self._enter(made, copy)

    def _enter(self, tensor: Tensor, source: Source) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self._sources.get(key)
        if known is not None and known[0]() is not None:
            known[1][:] = [s for s in known[1] if s.end <= source.start or source.end <= s.start]
            known[1].append(source)
            return

        def forget(gone: weakref.ref[Any]) -> None:
            if (kept := self._sources.get(key)) is not None and kept[0] is gone:
                del self._sources[key]

        self._sources[key] = (weakref.ref(storage, forget), [source])


def following_operations() -> dict[OpOverload, str]:
    """Operations that a weight is followed through: copy | scaling | gather."""
    groups = (("copy", _COPIES), ("scaling", _SCALINGS), ("gather", _GATHERS))
    return {overload: word for word, names in groups for name in names for overload in overloads(name)}


def follow(weights: Weights, how: str, args: tuple[Any, ...], made: Any) -> None:
    """Tell `weights` of one operation; only weights of at least two dimensions are followed."""
    original = args[1] if how == "copy" and len(args) > 1 and args[0] is made else args[0]
    if not isinstance(original, Tensor) or not isinstance(made, Tensor) or made.dim() < 2:
        return
    if how == "scaling":  # by a factor for all or for each row; anything larger is no scaling
        factors = [a for a in args[1:] if isinstance(a, Tensor)]
        if made.shape != original.shape or any(f.numel() * 2 > original.numel() for f in factors):
            return
    weights.follow(original, made, gathered=how == "gather")
