"""Which ranks of a run left records, and which left none, stopped early or switched themselves off."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import duckdb

from fp8debug.analysis.liveness import liveness
from fp8debug.rundir import MAX_RANKS, Manifest, RankInfo, RunDir

_LAST_STEPS = """
select rank, max(step)
from (select rank, step from stored.tensors union all select rank, step from stored.steps)
where rank between 0 and $last
group by rank
order by rank
"""


@dataclass(frozen=True, slots=True)
class RankNote:
    """One thing to know of one rank."""

    rank: int
    step: int | None
    """The last that it recorded."""
    message: str


@dataclass(frozen=True, slots=True)
class Presence:
    """The ranks of a run."""

    n_ranks: int
    recorded: tuple[int, ...]
    """Those that left records."""
    notes: tuple[RankNote, ...]
    """In order of ranks."""
    missing: tuple[int, ...] = ()
    """Those that left none and should have."""

    @property
    def are_several(self) -> bool:
        """Whether there is something to merge."""
        return len(self.recorded) > 1


def presence(
    con: duckdb.DuckDBPyConnection, run: RunDir, manifest: Manifest, ranks: Sequence[RankInfo]
) -> Presence | None:
    """Look at what each rank left; None for a run of one rank. Needs the stored views, not narrowed."""
    with_files = run.ranks_with_parts("tensors") | run.ranks_with_parts("steps")
    n_ranks = max([manifest.world_size, *(info.world_size for info in ranks)])
    if n_ranks == 1 and len(with_files) <= 1:
        return None
    last = dict(con.execute(_LAST_STEPS, {"last": MAX_RANKS - 1}).fetchall())
    said = {info.rank: info for info in ranks}
    is_running = liveness(run, manifest).status == "running"
    n_ranks = max([n_ranks, *(rank + 1 for rank in last)])
    # Of an imported run somebody chose the ranks whose logs there are.
    expected = last if "imported_from" in manifest.options else range(n_ranks)
    notes = tuple(_notes(expected, last, said, is_running)) if last else ()
    missing = tuple(rank for rank in expected if rank not in last)
    return Presence(len(expected), tuple(last), notes, missing)


def _notes(
    expected: Iterable[int], last: Mapping[int, int | None], said: Mapping[int, RankInfo], is_running: bool
) -> Iterator[RankNote]:
    newest = max((step for step in last.values() if step is not None), default=None)
    for rank in expected:
        step, info = last.get(rank), said.get(rank)
        if rank not in last:
            yield RankNote(rank, None, f"rank {rank} left no {'records' if info is not None else 'files'}{_why(info)}")
        elif info is not None and info.status == "disabled":
            yield RankNote(rank, step, f"rank {rank} switched itself off{_at(step)}{_why(info)}")
        elif step is not None and newest is not None and step < newest and not is_running:
            text = f"rank {rank} recorded nothing after step {step}, others went on to step {newest}{_why(info)}"
            yield RankNote(rank, step, text)


def _at(step: int | None) -> str:
    return "" if step is None else f", last recorded step {step}"


def _why(info: RankInfo | None) -> str:
    return f": {info.status_reason}" if info is not None and info.status_reason else ""
