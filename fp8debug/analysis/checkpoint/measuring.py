"""One pass over the bytes of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable

from fp8debug.analysis.checkpoint.facts import Facts
from fp8debug.analysis.checkpoint.records import Convention
from fp8debug.analysis.checkpoint.store import Store


def measure(store: Store, convention: Convention, told: Callable[[str], None]) -> Facts:
    """Facts of all tensors."""
    raise NotImplementedError


def scales_only(store: Store, convention: Convention) -> Facts:
    """Facts of the scales alone: what headers and a few bytes tell."""
    raise NotImplementedError
