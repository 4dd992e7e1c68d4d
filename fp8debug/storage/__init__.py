"""Where the files of a run are: a folder, or a prefix in a bucket. Only what both can do."""

from __future__ import annotations

import os

from fp8debug.storage.address import ObjectPath, RunPath, absolute, is_url, resolved, run_path
from fp8debug.storage.base import Held, Storage
from fp8debug.storage.local import LocalStorage

__all__ = [
    "Held",
    "LocalStorage",
    "ObjectPath",
    "RunPath",
    "Storage",
    "absolute",
    "is_url",
    "resolved",
    "run_path",
    "storage_of",
]


def storage_of(where: str | os.PathLike[str]) -> Storage:
    """The storage at a path or an URL such as `s3://bucket/run`; touches nothing.

    Raises:
        UsageError: an URL of a kind that nothing here can open, or a package for it that is not installed.
    """
    path = run_path(where)
    if isinstance(path, ObjectPath):
        from fp8debug.storage.objects import ObjectStorage

        return ObjectStorage(path)
    return LocalStorage(path)
