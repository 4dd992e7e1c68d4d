"""Paths and URLs as a person writes them."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath


class ObjectPath(PurePosixPath):
    """An address in an object store, such as `s3://bucket/runs/a`: joined like a path, never opened as one."""

    def __str__(self) -> str:
        scheme, *rest = self.parts
        return f"{scheme}//{'/'.join(rest)}"

    def __fspath__(self) -> str:
        return str(self)


RunPath = Path | ObjectPath
"""Where a run is: a folder, or a prefix in an object store."""


def is_url(where: str | os.PathLike[str]) -> bool:
    """Whether this names something in an object store rather than a file."""
    return isinstance(where, ObjectPath) or "://" in os.fspath(where)


def absolute(path: RunPath) -> RunPath:
    """The path as it is meant from any working directory; links are not followed."""
    return path if isinstance(path, ObjectPath) else path.absolute()


def resolved(where: str | os.PathLike[str]) -> RunPath:
    """As `run_path`, with a path made absolute and its links followed, so that it stays what it is."""
    path = run_path(where)
    return path if isinstance(path, ObjectPath) else path.resolve()


def run_path(where: str | os.PathLike[str]) -> RunPath:
    """What a person wrote as a path that can be joined and printed."""
    return ObjectPath(os.fspath(where)) if is_url(where) else Path(where)
