"""The files of one rank, kept few by its own writer: parts are merged while it writes.

A merged part appears by one rename while those that it holds are still there, and readers know from its name that they
do not count any more. So at any instant each row counts once. Old files go when nobody reads the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fp8debug.generations import COMPACTION_LOCK, is_part, read_generation
from fp8debug.hooks.merging import UnreadablePart, merge_parts
from fp8debug.hooks.superseded import remove_superseded
from fp8debug.hooks.tiers import Group, Sized, due
from fp8debug.parts import Part, parse_part
from fp8debug.rundir import RunDir

CLOSE_BYTES = 64 << 20
"""Most that is merged at the close, where somebody waits for the training to end."""


class OwnParts:
    """Merges parts of one rank. To be called by the thread that writes them."""

    def __init__(self, run_dir: RunDir, rank: int) -> None:
        self._run_dir = run_dir
        self._storage = run_dir.storage
        self._rank = rank
        self._unreadable: set[str] = set()

    def merge_due(self, table: str) -> None:
        """Merge what is due in a table, and remove what does not count any more; raises OSError."""
        before = self._superseded(table)
        while groups := self._due(table):
            for group in groups:
                self._merge(table, group)
        self._clean(table, before)

    def merge_at_close(self, tables: Iterable[str]) -> None:
        """Merge the small parts of tables that have many, the smallest first, as far as time allows; raises OSError."""
        found = [(_size(group), table, group) for table in tables for group in self._due(table, at_close=True)]
        left_bytes = CLOSE_BYTES
        for n_bytes, table, group in sorted(found, key=lambda one: one[0]):
            if n_bytes > left_bytes:
                return
            left_bytes -= n_bytes
            before = self._superseded(table)
            self._merge(table, group)
            self._clean(table, before)

    def _due(self, table: str, *, at_close: bool = False) -> Sequence[Group]:
        if self._storage.is_held(COMPACTION_LOCK):
            return []
        live = [part for name in self._live(table) if (part := parse_part(name)) is not None]
        return due([self._sized(part) for part in live], at_close=at_close)

    def _sized(self, part: Part) -> Sized:
        n_flushes = part.last - part.first + 1
        return Sized(part.name, n_flushes, self._storage.size(part.name), part.name in self._unreadable)

    def _merge(self, table: str, group: Group) -> None:
        first, last = parse_part(group[0].name), parse_part(group[-1].name)
        assert first is not None and last is not None
        target = Part(table, self._rank, first.first, last.last)
        try:
            merge_parts(self._storage, table, [part.name for part in group], target.name)
        except UnreadablePart as error:
            self._unreadable.add(error.name)

    def _clean(self, table: str, before: Sequence[str]) -> None:
        for name in self._storage.leftovers(self._folder(table)):  # ours alone: of processes that were killed
            self._storage.remove(name)
        remove_superseded(self._storage, before=before, now=self._superseded(table))

    def _superseded(self, table: str) -> list[str]:
        generation = read_generation(self._storage)
        counts = {*generation.files.get(table, []), *self._live(table)}
        return [name for name in self._storage.names(self._folder(table)) if is_part(name) and name not in counts]

    def _live(self, table: str) -> list[str]:
        """Parts that may be merged: those that no merged file of all ranks holds."""
        generation = read_generation(self._storage)
        live = generation.live(table, self._storage.names(self._folder(table)))
        return [name for name in live if name not in generation.files.get(table, [])]

    def _folder(self, table: str) -> str:
        return f"{table}/rank={self._rank}"


def _size(group: Group) -> int:
    return sum(part.n_bytes for part in group)
