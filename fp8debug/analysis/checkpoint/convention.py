"""From the names, dtypes, shapes and configurations of a checkpoint to how it is read."""

from __future__ import annotations

from fp8debug.analysis.checkpoint.records import Convention
from fp8debug.analysis.checkpoint.store import Store


def read_convention(store: Store, dialect: str | None = None) -> Convention:
    """Say how the tensors of a checkpoint are read.

    Args:
        store: the checkpoint.
        dialect: name of the dialect; None: recognised.

    Raises:
        UsageError: several readings fit; the message says what would settle it.
    """
    raise NotImplementedError
