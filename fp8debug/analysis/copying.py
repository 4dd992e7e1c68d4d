"""A run in an object store is copied before it is read: its small files, and those of the tables that are asked about.

DuckDB could read there itself, through a file system of ours; it asks for each file many times over, one after the
other: 859 requests for a report that needs some 15 this way. And a query of somebody else's has no way to the network.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fp8debug.errors import Fp8DebugError
from fp8debug.generations import CURRENT_NAME, is_part, read_generation
from fp8debug.rundir import RunDir
from fp8debug.schema import TABLES
from fp8debug.storage.objects import ObjectStorage

LARGE_TABLES = ("values",)
"""Copied when a query names them: raw tensors, which may be most of a run."""
_TRIES = 5
_SMALL_FILE = re.compile(rf"run\.json|rank=\d+\.json|{CURRENT_NAME}")


class LocalCopy:
    """Files of a run in an object store, in a temporary folder that goes when the copy is closed."""

    def __init__(self, run: RunDir) -> None:
        """Copy all but the large tables.

        Raises:
            Fp8DebugError: the store cannot be reached, or there is no room for the copy.
        """
        assert isinstance(run.storage, ObjectStorage)
        self._storage = run.storage
        self._folder = tempfile.TemporaryDirectory(prefix="fp8debug-copy-")
        self.run = RunDir(self._folder.name)
        """The copy, as a run directory of this machine."""
        self._copied: set[str] = set()
        try:
            self._copy_again_until_whole()
        except BaseException:
            self.close()
            raise

    def copy_table(self, table: str) -> None:
        """Copy what there is of one of the large tables.

        Raises:
            Fp8DebugError: as above.
        """
        self._guarded([name for name in self._names(table) if name.startswith(f"{table}/")])

    def address_of(self, path: str) -> str:
        """Where in the store the file with this path in the copy is."""
        return self._storage.address(str(Path(path).relative_to(self.run.folder)))

    def close(self) -> None:
        """Delete the copy."""
        self._folder.cleanup()

    def _copy_again_until_whole(self) -> None:
        """Files may be merged while they are copied: then some are gone, or `CURRENT` names others than were listed."""
        for _ in range(_TRIES):
            current = self._stamp()
            if self._guarded(self._counting(self._names(""))) and self._stamp() == current:
                return
        raise Fp8DebugError(f"{self._storage.address()} changes faster than it can be copied; try again")

    def _counting(self, names: Sequence[str]) -> list[str]:
        """Without what was merged since, and without the large tables."""
        generation = read_generation(self._storage)
        tables = [table for table in TABLES if table not in LARGE_TABLES]
        there = set(names)
        live = [
            name
            for table in tables
            for name in generation.live(table, [name for name in names if name.startswith(f"{table}/")])
            if name in there
        ]
        return [*live, *(name for name in names if not is_part(name))]

    def _names(self, folder: str) -> list[str]:
        """What is ours of a listing: whatever else is in there, a name must not lead out of the copy."""
        try:
            names = self._storage.names(folder)
        except OSError as error:
            raise self._problem(error) from error
        return [
            name
            for name in names
            if (is_part(name) and name.split("/")[0] in TABLES) or _SMALL_FILE.fullmatch(name) is not None
        ]

    def _guarded(self, names: Sequence[str]) -> bool:
        """Copy what was not copied yet, small files again; False when a file was gone."""
        missing = [name for name in names if name not in self._copied]
        try:
            self._storage.fetch(missing, self.run.folder)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self._problem(error) from error
        self._copied |= {name for name in missing if is_part(name)}
        return True

    def _stamp(self) -> object:
        try:
            return self._storage.stamp(CURRENT_NAME)
        except OSError as error:
            raise self._problem(error) from error

    def _problem(self, error: OSError) -> Fp8DebugError:
        return Fp8DebugError(f"cannot copy {self._storage.address()} to {self._folder.name} to read it: {error}")
