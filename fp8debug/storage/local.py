"""A folder of this machine, or one that is mounted here."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fp8debug.reading import read_bytes
from fp8debug.storage.address import ObjectPath
from fp8debug.storage.base import Held, Stamp

_SHARE_TRIES, _SHARE_PAUSE_S = 200, 0.01
_TEMPORARY = re.compile(r"\..+\.tmp\d+(-\d+)?")


class LocalStorage:
    """Files below a folder. A file is written beside its place and renamed; exclusion is flock on a file."""

    path: ObjectPath | None = None

    def __init__(self, root: Path) -> None:
        self.root = root
        self._made: set[Path] = set()

    def address(self, name: str = "") -> str:
        """The path of a file."""
        return str(self.root / name) if name else str(self.root)

    def read(self, name: str) -> bytes:
        """All bytes of a file; raises OSError."""
        return read_bytes(self.root / name)

    def names(self, folder: str = "") -> list[str]:
        """Files below `folder`, links not followed into folders; sorted."""
        return sorted(_below(str(self.root / folder), f"{folder}/" if folder else ""))

    def top_names(self) -> list[str]:
        """Files directly below the root, sorted."""
        try:
            with os.scandir(self.root) as entries:
                return sorted(entry.name for entry in entries if _is_file(entry))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def folder_names(self) -> list[str]:
        """Folders directly below the root, sorted."""
        try:
            with os.scandir(self.root) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def total_size(self) -> int:
        """Bytes of all files."""
        total = 0
        for parent, _, names in os.walk(self.root):
            for name in names:
                with contextlib.suppress(OSError):  # a temporary file that was renamed meanwhile
                    total += os.lstat(os.path.join(parent, name)).st_size
        return total

    def exists(self, name: str) -> bool:
        """Whether there is a file of this name."""
        return (self.root / name).is_file()

    def size(self, name: str) -> int:
        """Bytes of a file; raises OSError."""
        return (self.root / name).lstat().st_size

    def stamp(self, name: str) -> Stamp | None:
        """One stat call; None when there is no such file."""
        try:
            found = os.stat(self.root / name)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size

    def replace(self, name: str, content: bytes) -> None:
        """Write beside, then rename; raises OSError."""
        with self.writing(name) as file:
            file.write(content)

    def create(self, name: str, content: bytes) -> bool:
        """Write beside, then link to the name, which fails where there is one; raises OSError."""
        target = self.root / name
        if target.exists():
            return False
        temporary = _beside(target)
        temporary.write_bytes(content)
        try:
            os.link(temporary, target)
        except FileExistsError:
            return False
        except OSError:  # a file system without links
            os.replace(temporary, target)
        finally:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
        return True

    @contextmanager
    def writing(self, name: str, *, durable: bool = False) -> Iterator[IO[bytes]]:
        """A file beside the place, renamed when the block ends well; raises OSError.

        Folders below the root are made, once: nothing is made again when somebody has removed it, the root neither.
        """
        target = self.root / name
        self._make_folder(target.parent)
        temporary = _beside(target)
        try:
            with temporary.open("wb") as file:
                yield file
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(temporary, target)
            if durable:
                _sync_folder(target.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise

    def remove(self, name: str) -> None:
        """Delete a file; raises OSError when it is there and stays."""
        (self.root / name).unlink(missing_ok=True)

    def leftovers(self, folder: str = "") -> list[str]:
        """The temporary files of `writing` and `create`, those of live processes included."""
        return [name for name in self.names(folder) if _TEMPORARY.fullmatch(name.rpartition("/")[2])]

    def hold(self, name: str) -> Held:
        """Lock the file `name`, which is made; raises BlockingIOError when it is locked."""
        return _lock(self.root / name, "ab", fcntl.LOCK_EX)

    def share(self, name: str) -> Held | None:
        """Lock the file `name` for reading, if it is there: reading a run writes nothing, its times included."""
        for _ in range(_SHARE_TRIES):
            try:
                return _lock(self.root / name, "rb", fcntl.LOCK_SH)
            except BlockingIOError:
                time.sleep(_SHARE_PAUSE_S)
            except OSError:
                return None
        return None

    def is_held(self, name: str) -> bool | None:
        """Whether the file `name` is locked; None when it is not there or locks do not work."""
        try:
            with (self.root / name).open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return True if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else None
        return False

    def _make_folder(self, folder: Path) -> None:
        if folder == self.root or folder in self._made or folder.is_dir():
            return
        self._make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        self._made.add(folder)


def _below(folder: str, prefix: str) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield from _below(entry.path, f"{prefix}{entry.name}/")
                elif _opens_at_once(entry):
                    yield prefix + entry.name
    except OSError:  # not there, or gone meanwhile
        return


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # links in a circle
        return False


def _opens_at_once(entry: os.DirEntry[str]) -> bool:
    """Whether a reader gets a file or an error: one of a pipe would wait for somebody to write to it."""
    try:
        return entry.is_file() or not entry.stat()
    except OSError:  # a link to nothing, or in a circle
        return True


class _Lock:
    def __init__(self, file: IO[bytes], *, excludes: bool) -> None:
        self._file = file
        self.excludes = excludes

    def refresh(self) -> None:
        """Nothing: the lock ends with the process."""

    def release(self) -> None:
        """Unlock by closing."""
        self._file.close()


def _lock(path: Path, mode: str, kind: int) -> Held:
    file = path.open(mode)
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise
    except OSError:  # a file system without locks, as Lustre often is mounted: do without
        return _Lock(file, excludes=False)
    return _Lock(file, excludes=True)


def _sync_folder(folder: Path) -> None:
    """Let the names in it reach the disk."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    with contextlib.suppress(OSError):  # a file system that cannot
        os.fsync(opened)
    os.close(opened)


def _beside(target: Path) -> Path:
    """A name in the same folder that no reader takes for a file of the run."""
    return target.with_name(f".{target.name}.tmp{os.getpid()}-{threading.get_ident()}")
