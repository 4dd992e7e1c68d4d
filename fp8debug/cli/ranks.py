"""What all ranks of a launch came to, as their files say."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from fp8debug.errors import some
from fp8debug.rundir import RankInfo, RunDir
from fp8debug.storage import is_url


def ranks_lines(run_dir: RunDir, expected: int | None = None) -> list[str]:
    """Last lines for the person: how many ranks recorded how much, who is missing, and the next command.

    Args:
        run_dir: where they were told to record.
        expected: how many ranks were started; None: as many as the ranks that came say there are.
    """
    path = str(run_dir.path) if is_url(run_dir.path) else os.path.relpath(run_dir.path)
    shown = str(run_dir.path) if path.startswith("..") else path
    everyone = run_dir.read_ranks()
    segment = max((rank.segment for rank in everyone), default=0)
    came = [rank for rank in everyone if rank.segment == segment]
    expected = expected or max((rank.world_size for rank in came), default=0)
    recorded = [rank for rank in came if rank.n_records]
    absent = sorted({*range(expected)} - {rank.rank for rank in came})
    if not recorded:
        who = f"none of {expected} ranks wrote to {shown}" if expected else f"no process wrote to {shown}"
        return [f"fp8debug: NOTHING WAS RECORDED: {who}"]
    lines = [f"fp8debug: warning: {text}" for text in _problems(came, absent)]
    n_records, n_steps = sum(rank.n_records for rank in recorded), max(rank.n_steps for rank in recorded)
    return [
        *lines,
        f"fp8debug: {len(recorded)} of {expected} ranks recorded {n_records:,} tensors in {n_steps:,} steps: {shown}",
        f"fp8debug: next: fp8debug report {shlex.quote(shown)}",
    ]


def _problems(came: Sequence[RankInfo], absent: Sequence[int]) -> list[str]:
    problems = []
    if absent:
        names = some([str(rank) for rank in absent])
        problems.append(f"rank{'' if len(absent) == 1 else 's'} {names} left no files")
    problems += [f"rank {rank.rank} recorded nothing" for rank in came if not rank.n_records]
    problems += [f"rank {rank.rank} {rank.status}: {rank.status_reason}" for rank in came if rank.status == "disabled"]
    return problems
