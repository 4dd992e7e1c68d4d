"""What a run directory asks of the place where it is."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import IO, Protocol

from fp8debug.storage.address import ObjectPath

Stamp = tuple[str | int, ...]
"""Of a file: another one when the file is another one."""


class Held(Protocol):
    """An exclusion that this process holds."""

    @property
    def excludes(self) -> bool:
        """False where the place cannot exclude anybody: nobody was refused, and nobody will be."""

    def refresh(self) -> None:
        """Say that we live, where that has to be said; nothing happens when it was said just now.

        Raises:
            OSError: somebody else holds it now, or it cannot be said.
        """

    def release(self) -> None:
        """Give it back; safe to call twice."""


class Storage(Protocol):
    """Files under one root. Names are relative to it, with `/` between their parts.

    Every file appears whole or not at all, under its name: nobody sees the half of one.
    """

    def address(self, name: str = "") -> str:
        """What a query engine or a person calls the file: a path or an URL."""

    def read(self, name: str) -> bytes:
        """All bytes of a file.

        Raises:
            OSError: it cannot be read; FileNotFoundError: it is not there.
        """

    def names(self, folder: str = "") -> list[str]:
        """Names of all files below `folder`, at any depth, sorted; none where there is no such folder."""

    def top_names(self) -> list[str]:
        """Names of the files directly below the root, sorted; folders are not looked into."""

    def folder_names(self) -> list[str]:
        """Names of the folders directly below the root, sorted; what links to a folder is none."""

    def total_size(self) -> int:
        """Bytes of all files; one that goes meanwhile is not counted."""

    def exists(self, name: str) -> bool:
        """Whether there is a file of this name."""

    def size(self, name: str) -> int:
        """Bytes of a file.

        Raises:
            OSError: as read.
        """

    def stamp(self, name: str) -> Stamp | None:
        """In one request, what tells this file from another one of its name; None when there is none."""

    def replace(self, name: str, content: bytes) -> None:
        """Write a file, in place of one that may be there.

        Raises:
            OSError: it cannot be written.
        """

    def create(self, name: str, content: bytes) -> bool:
        """Write a file unless there is one; returns whether it was written. Of several callers one succeeds.

        Raises:
            OSError: it cannot be written.
        """

    def writing(self, name: str, *, durable: bool = False) -> AbstractContextManager[IO[bytes]]:
        """A file to write to, which gets its name when the block ends without an error.

        Args:
            durable: it outlives a failure of the machine from then on, since others are deleted because of it.

        Raises:
            OSError: it cannot be written.
        """

    def remove(self, name: str) -> None:
        """Delete a file; no error when it is gone already.

        Raises:
            OSError: it is there and cannot be deleted.
        """

    def leftovers(self, folder: str = "") -> list[str]:
        """Names below `folder` of what writers began and have not finished: where nobody writes, those of dead ones."""

    def hold(self, name: str) -> Held:
        """Exclude other holders of `name` until released or until this process ends.

        Where a place cannot exclude anybody (a file system without locks), it is given to all.

        Raises:
            BlockingIOError: somebody else holds it.
            OSError: it cannot be written.
        """

    def share(self, name: str) -> Held | None:
        """Hold `name` together with others who share it, which excludes `hold`; None where that cannot be had.

        A short hold of somebody else is waited for. Nothing is written: there must have been a holder before.
        """

    def is_held(self, name: str) -> bool | None:
        """Whether somebody alive holds `name`; None where that cannot be told, as when nobody ever held it."""

    @property
    def path(self) -> ObjectPath | None:
        """The address when this is no folder of this machine, else None."""
