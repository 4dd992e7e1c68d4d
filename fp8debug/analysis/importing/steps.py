"""From the lines of logs to steps: restarts, numbers that are given twice, and what ranks give alike."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from fp8debug.analysis.importing.names import GivenName
from fp8debug.analysis.importing.tally import Tally
from fp8debug.analysis.importing.te_log import EXAMPLE, Unread, read_log
from fp8debug.errors import UsageError, escape

Operand = tuple[str, str]
"""Layer and tensor."""
MOST_RESTARTS = 1000


@dataclass(frozen=True, slots=True)
class Record:
    """What is kept of one operand's numbers in one step."""

    rank: int
    call: int
    """Above 0 where a step has different numbers of one name."""
    operand: Operand
    given: Mapping[GivenName, str]
    """All that this rank gives, as it is printed."""
    kept: Sequence[GivenName]
    """Those of them that no lower rank gives alike."""


@dataclass(frozen=True, slots=True)
class Step:
    """What all ranks logged in one step."""

    segment: int
    step: int
    ranks: tuple[int, ...]
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class _RankStep:
    segment: int
    step: int
    rank: int
    uses: dict[Operand, list[dict[GivenName, str]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, name: GivenName, text: str) -> bool:
        """Add a number; False when it is there already."""
        uses = self.uses[name.layer, name.tensor]
        for use in uses:
            known = use.get(name)
            if known is None:
                use[name] = text
                return True
            if known == text:
                return False
        uses.append({name: text})
        return True


def read_steps(files: Mapping[int, Sequence[Path]], tally: Tally) -> Iterator[Step]:
    """The steps of logs, read side by side, segment by segment; one step of all ranks is in memory at a time.

    Args:
        files: by rank; those of one rank follow each other.
        tally: told of everything that is seen.

    Raises:
        UsageError: a file that cannot be read, or lines of several logs in one.
    """
    streams = [_rank_steps(rank, paths, tally) for rank, paths in sorted(files.items())]
    ordered = heapq.merge(*streams, key=lambda step: (step.segment, step.step, step.rank))
    for (segment, step), group in groupby(ordered, key=lambda step: (step.segment, step.step)):
        of_ranks = list(group)
        records = tuple(_records(of_ranks, tally))
        tally.steps.add(step)
        yield Step(segment, step, tuple(entry.rank for entry in of_ranks), records)


def _rank_steps(rank: int, paths: Sequence[Path], tally: Tally) -> Iterator[_RankStep]:
    """Steps of one rank. Where the iteration goes back, or a file begins no later than the last one ended, the
    training was started again."""
    current: _RankStep | None = None
    segment = 0
    for path in paths:
        is_start, unread = True, None
        for line in read_log(path):
            if isinstance(line, Unread):
                unread = unread or line
                tally.add_unread(path, line)
                continue
            if current is None or line.step != current.step or is_start:
                if current is not None and (line.step < current.step or (is_start and line.step == current.step)):
                    segment += 1
                    tally.add_restart(rank, path, line, current.step)
                    _check_restarts(segment, path)
                if current is not None:
                    yield current
                current, is_start = _RankStep(segment, line.step, rank), False
                tally.add_start(segment, line)
            if not current.add(line.name, line.text):
                tally.n_repeated += 1
        if is_start:
            _check_empty(path, unread)
            tally.empty.append(path)
    if current is not None:
        yield current


def _check_empty(path: Path, unread: Unread | None) -> None:
    if unread is not None:
        raise UsageError(
            f"{path} has no number of a tensor; its line {unread.line} is {escape(unread.text[:80])!r} "
            f"({unread.reason}); expected lines such as\n  {EXAMPLE}\nwhich nvdlfw_inspect writes to the folder "
            "nvdlfw_inspect_statistics_logs"
        )


def _check_restarts(segment: int, path: Path) -> None:
    if segment > MOST_RESTARTS:
        raise UsageError(
            f"{path}: the iteration goes back more than {MOST_RESTARTS:,} times, so these are lines of several logs; "
            "expected the log of one rank in each file: give the files that nvdlfw_inspect wrote, one a rank"
        )


def _records(of_ranks: Sequence[_RankStep], tally: Tally) -> Iterator[Record]:
    """One an operand, use and rank, without what a lower rank gives alike."""
    lowest: dict[tuple[int, GivenName], str] = {}
    for entry in of_ranks:
        for operand, uses in entry.uses.items():
            for call, given in enumerate(uses):
                kept = [name for name, text in given.items() if lowest.get((call, name)) != text]
                tally.n_alike += len(given) - len(kept)
                for name in kept:
                    if (call, name) in lowest:
                        tally.n_differing += 1
                    else:
                        lowest[call, name] = given[name]
                if kept:
                    yield Record(entry.rank, call, operand, given, kept)
