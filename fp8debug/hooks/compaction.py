"""The files of a finished run made few: parts of all ranks merged into a new generation of files.

New files lie where no reader looks until `CURRENT` names them, which is one replacement of a small file; what they
replace is deleted after it. So a process that is killed at any instant leaves the run as it was or as it will be,
beside files that do not count, which the next compaction deletes.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from fp8debug.errors import Fp8DebugError
from fp8debug.generations import (
    COMPACTION_LOCK,
    Generation,
    file_name,
    is_part,
    live_names,
    read_generation,
    write_generation,
)
from fp8debug.hooks.merging import UnreadablePart, merge_parts
from fp8debug.hooks.superseded import make_readers_lock, remove_superseded
from fp8debug.hooks.tiers import Sized, bins, small_runs
from fp8debug.parts import parse_part
from fp8debug.rundir import RunDir
from fp8debug.schema import TABLES
from fp8debug.storage import Held, Storage

FILE_BYTES = 256 << 20
"""Largest sum of parts that are merged into one file; files of half of it stay as they are."""
_LOCK_NAME = re.compile(r"rank=\d+\.lock")


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction came to. Files are Parquet files of the run, those included that do not count any more."""

    n_files_before: int
    n_files: int
    n_bytes_before: int
    n_bytes: int
    generation: int
    """Number of the files that count now; 0: nothing was ever merged over ranks."""
    n_files_left: int = 0
    """Files that do not count any more and are still there, since somebody reads the run or might."""
    unreadable: tuple[str, ...] = ()
    """Why files were not merged, which stay as they are."""


def compact(run_dir: RunDir, say: Callable[[str], None] = lambda _: None) -> Compacted:
    """Merge the parts of a run that nobody writes.

    Args:
        say: takes a line after each table.

    Raises:
        Fp8DebugError: somebody writes the run, or merges it too, or it cannot be written.
    """
    storage = run_dir.storage
    run_dir.read_manifest()
    try:
        with _only_one(run_dir) as held:
            begun = [name for name in storage.leftovers() if name.split("/")[0] in TABLES]
            _require_finished(run_dir)
            for name in begun:
                storage.remove(name)
            return _compact(storage, held, say)
    except (OSError, pa.ArrowException) as error:
        raise Fp8DebugError(f"{run_dir.path} is not compacted ({error}); it holds what it held before") from error


def _compact(storage: Storage, held: Held, say: Callable[[str], None]) -> Compacted:
    n_files_before, n_bytes_before = _count(storage)
    readers_show = not make_readers_lock(storage)
    before = _superseded(storage)
    merge = _Merge(storage, held, say)
    try:
        merge.run()
    except BaseException:
        merge.undo()
        raise
    n_left = remove_superseded(storage, before=before, now=_superseded(storage), readers_show=readers_show)
    n_files, n_bytes = _count(storage)
    return Compacted(
        n_files_before, n_files, n_bytes_before, n_bytes, read_generation(storage).generation, n_left,
        tuple(f"{name}: {reason}" for name, reason in merge.unreadable.items()),
    )  # fmt: skip


class _Merge:
    """From one generation of files to the next."""

    def __init__(self, storage: Storage, held: Held, say: Callable[[str], None]) -> None:
        self.unreadable: dict[str, str] = {}
        """Why files are not merged: they stay as they are, so that readers go on to say what is wrong with them."""
        self._storage = storage
        self._held = held
        self._say = say
        self._old = read_generation(storage)
        self._number = self._old.generation + 1
        self._written: list[str] = []

    def run(self) -> None:
        """Write the new files and let them count; raises OSError."""
        files, through = dict(self._old.files), dict(self._old.through)
        sources: dict[str, list[str]] = {}
        for table in TABLES:
            live = live_names(self._storage, table)
            merged = self._merge_table(table, live)
            if len(merged) < len(live):
                sources[table] = live
                files[table], through[table] = merged, self._through(table, live)
                self._say(f"{table}: {len(live)} files into {len(merged)}")
        if not sources:
            return
        for table, names in sources.items():
            if gone := set(names) - set(live_names(self._storage, table)):
                raise FileNotFoundError(f"{min(gone)} is gone: somebody else merges the run")
        self._held.refresh()
        write_generation(self._storage, Generation(self._number, files, through))

    def undo(self) -> None:
        """Delete what was written, if it does not count; what stays is deleted by the next compaction."""
        with contextlib.suppress(OSError, Fp8DebugError):
            if read_generation(self._storage).generation != self._number:
                for name in self._written:
                    self._storage.remove(name)

    def _merge_table(self, table: str, live: Sequence[str]) -> list[str]:
        """The files that hold the rows of `live`, in order: some of those, and merged ones."""
        while True:
            try:
                return list(self._merged(table, live))
            except UnreadablePart as error:
                self.unreadable[error.name] = error.reason

    def _merged(self, table: str, live: Sequence[str]) -> Iterator[str]:
        sized = [self._sized(name) for name in live]
        groups = [group for run in small_runs(sized, FILE_BYTES) for group in bins(run, FILE_BYTES)]
        group_of = {part.name: group for group in groups for part in group}
        n_targets = 0
        for name in live:
            group = group_of.get(name)
            if group is None:
                yield name
            elif name == group[0].name:
                target = file_name(table, self._number, n_targets)
                n_targets += 1
                self._written.append(target)
                merge_parts(self._storage, table, [part.name for part in group], target)
                self._held.refresh()
                yield target

    def _sized(self, name: str) -> Sized:
        try:
            return Sized(name, 1, self._storage.size(name), name in self.unreadable)
        except FileNotFoundError:
            if not any(name in names for names in self._old.files.values()):
                raise
            self.unreadable[name] = "it is not there"
            return Sized(name, 1, 0, stays=True)

    def _through(self, table: str, live: Sequence[str]) -> dict[str, int]:
        through = dict(self._old.through.get(table, {}))
        for part in map(parse_part, live):
            if part is not None:
                through[str(part.rank)] = max(part.last, through.get(str(part.rank), -1))
        return through


def _superseded(storage: Storage) -> list[str]:
    found = []
    for table in TABLES:
        counts = set(live_names(storage, table))
        found += [name for name in storage.names(table) if is_part(name) and name not in counts]
    return found


def _count(storage: Storage) -> tuple[int, int]:
    names = [name for table in TABLES for name in storage.names(table) if is_part(name)]
    return len(names), sum(storage.size(name) for name in names)


@contextmanager
def _only_one(run_dir: RunDir) -> Iterator[Held]:
    for _ in range(10):
        try:
            held = run_dir.storage.hold(COMPACTION_LOCK)
            break
        except BlockingIOError:  # a writer may be just asking
            time.sleep(0.05)
    else:
        raise Fp8DebugError(f"{run_dir.path} is being compacted by another process; wait until it is done")
    try:
        yield held
    finally:
        held.release()


def _require_finished(run_dir: RunDir) -> None:
    locks = [name for name in run_dir.storage.top_names() if _LOCK_NAME.fullmatch(name)]
    held = {name: run_dir.storage.is_held(name) for name in locks}
    if alive := [name for name in locks if held[name]]:
        ranks = ", ".join(name.removesuffix(".lock").replace("=", " ") for name in alive[:4])
        raise Fp8DebugError(
            f"{run_dir.path} is being written ({ranks}{', ...' if len(alive) > 4 else ''}); expected a run that has "
            "ended: while it goes on its writers merge their own parts"
        )
    is_untold = run_dir.storage.path is None and None in held.values()
    if is_untold and run_dir.read_manifest().status == "running":
        raise Fp8DebugError(
            f"{run_dir.path} says that it is running, and its file system has no locks that would tell; expected a run "
            "that has ended"
        )
