"""A prefix in an object store, reached through fsspec: `s3://bucket/run`, and what else fsspec has a file system for.

A PUT is the commit, so a file appears whole. Where the store is and who may write there, the environment says as it
does for other tools: AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, the files below ~/.aws, and those of fsspec.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from fp8debug.storage.address import ObjectPath
from fp8debug.storage.base import Held, Stamp
from fp8debug.storage.file_systems import file_system, file_system_class, is_s3, os_errors
from fp8debug.storage.lease import DEAD_AFTER_S, is_gone, take

SPOOL_BYTES = 16 << 20
"""A file that is written stays in memory up to this size; a larger one waits on the local disk."""
RETRY_AFTER_S = (1.0, 3.0, 9.0)
"""Pauses before a file is sent once more."""


class ObjectStorage:
    """Objects below a prefix. Every request asks the store: nothing that others may change is remembered."""

    def __init__(self, path: ObjectPath) -> None:
        """Touches nothing but the packages that are needed.

        Raises:
            UsageError: nothing here can open such an URL.
        """
        self.path: ObjectPath | None = path
        self._url = str(path)
        self._scheme = self._url.partition("://")[0]
        file_system_class(self._scheme)

    @property
    def file_system(self) -> Any:
        """The fsspec file system of this process."""
        return file_system(self._scheme, os.getpid())

    def address(self, name: str = "") -> str:
        """The URL of an object."""
        return f"{self._url}/{name}" if name else self._url

    def read(self, name: str) -> bytes:
        """All bytes of an object; raises OSError."""
        with os_errors():
            content: bytes = self.file_system.cat_file(self.address(name))
        return content

    def fetch(self, names: Sequence[str], folder: Path) -> None:
        """Copy objects to files of these names below `folder`, several at once; raises OSError."""
        targets = [folder / name for name in names]
        for parent in {target.parent for target in targets}:
            parent.mkdir(parents=True, exist_ok=True)
        if names:
            with os_errors():
                self.file_system.get([self.address(name) for name in names], [str(target) for target in targets])

    def names(self, folder: str = "") -> list[str]:
        """Objects below `folder`, all pages of the listing; sorted. Raises OSError."""
        with os_errors():
            try:
                found = self.file_system.find(self.address(folder))
            except FileNotFoundError:
                return []
        root = self._key("")
        return sorted(str(key)[len(root) + 1 :] for key in found if str(key).startswith(f"{root}/"))

    def top_names(self) -> list[str]:
        """Objects directly below the prefix, sorted. Raises OSError."""
        return sorted(self._below("file"))

    def folder_names(self) -> list[str]:
        """Prefixes directly below this one, sorted. Raises OSError."""
        return sorted(self._below("directory"))

    def exists(self, name: str) -> bool:
        """Whether there is such an object. Raises OSError."""
        return self._info(name) is not None

    def size(self, name: str) -> int:
        """Bytes of an object; raises OSError."""
        found = self._info(name)
        if found is None:
            raise FileNotFoundError(self.address(name))
        return int(found["size"])

    def total_size(self) -> int:
        """Bytes of all objects, from the listing alone; raises OSError."""
        with os_errors():
            return sum(int(info["size"]) for info in self.file_system.find(self._url, detail=True).values())

    def stamp(self, name: str) -> Stamp | None:
        """From one HEAD request; raises OSError."""
        found = self._info(name)
        if found is None:
            return None
        return tuple(str(found[key]) for key in ("ETag", "LastModified", "created", "mtime", "size") if key in found)

    def replace(self, name: str, content: bytes) -> None:
        """One PUT; raises OSError."""
        with os_errors():
            self.file_system.pipe_file(self.address(name), content)

    def create(self, name: str, content: bytes) -> bool:
        """One PUT on the condition that there is none; raises OSError.

        Where the file system knows no conditions, it asks before: another one may come between.
        """
        try:
            with os_errors():
                self.file_system.pipe_file(self.address(name), content, mode="create")
        except (TypeError, NotImplementedError):
            if self.exists(name):
                return False
            self.replace(name, content)
        except OSError:
            # Refused, in the words of one of many stores; or sent twice, since the first answer was lost.
            if not self.exists(name):
                raise
            return self.read(name) == content
        return True

    @contextmanager
    def writing(self, name: str, *, durable: bool = False) -> Iterator[IO[bytes]]:
        """A temporary file, sent when the block ends well: a few times where that fails. Raises OSError."""
        with tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES) as file:
            yield file
            for pause_s in (*RETRY_AFTER_S, None):
                try:
                    self._send(name, file)
                    return
                except (FileNotFoundError, PermissionError):  # no such bucket, or not ours: it stays so
                    raise
                except OSError:
                    if pause_s is None:
                        raise
                    time.sleep(pause_s)

    def remove(self, name: str) -> None:
        """Delete an object; raises OSError."""
        with os_errors(), contextlib.suppress(FileNotFoundError):
            self.file_system.rm_file(self.address(name))

    def leftovers(self, folder: str = "") -> list[str]:
        """None: what was not sent whole is not there."""
        return []

    def hold(self, name: str) -> Held:
        """Write a small object with a heartbeat; raises BlockingIOError while that of another one goes on."""
        return take(self, name)

    def share(self, name: str) -> Held | None:
        """Nothing here can be shared."""
        return None

    def is_held(self, name: str) -> bool | None:
        """Whether the last heartbeat is young, by the clock of this machine; None: nobody holds it."""
        try:
            if is_gone(self.read(name)):
                return False
            return (datetime.now(UTC) - self.modified(name)).total_seconds() < DEAD_AFTER_S
        except OSError:
            return None

    def modified(self, name: str) -> datetime:
        """When the object was written, by the clock of the store; raises OSError."""
        with os_errors():
            found: datetime = self.file_system.modified(self.address(name))
        return found if found.tzinfo is not None else found.replace(tzinfo=UTC)

    def _send(self, name: str, file: IO[bytes]) -> None:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        if size <= SPOOL_BYTES:
            self.replace(name, file.read())
            return
        with os_errors():
            target = self.file_system.open(self.address(name), "wb", block_size=SPOOL_BYTES)
            try:
                shutil.copyfileobj(file, target, 1 << 20)
            except BaseException:
                target.discard()
                raise
            target.close()

    def _info(self, name: str) -> dict[str, Any] | None:
        with os_errors():
            try:
                found: dict[str, Any] = self._head(name) if is_s3(self._scheme) else self._asked(name)
            except FileNotFoundError:
                return None
        return found if found["type"] == "file" else None

    def _head(self, name: str) -> dict[str, Any]:
        """One HEAD request, where s3fs would list as well what might be a folder of that name."""
        bucket, key, _ = self.file_system.split_path(self.address(name))
        found = self.file_system.call_s3("head_object", Bucket=bucket, Key=key)
        return {"type": "file", "size": found["ContentLength"], **{k: found[k] for k in ("ETag", "LastModified")}}

    def _asked(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.file_system.info(self.address(name))
        return found

    def _below(self, kind: str) -> Iterator[str]:
        with os_errors():
            try:
                found = self.file_system.ls(self._url, detail=True)
            except FileNotFoundError:
                return
        for info in found:
            name = str(info["name"]).rstrip("/").rpartition("/")[2]
            if info["type"] == kind and name:
                yield name

    def _key(self, name: str) -> str:
        return str(self.file_system._strip_protocol(self.address(name))).rstrip("/")
