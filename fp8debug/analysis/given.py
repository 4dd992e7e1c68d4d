"""What an imported run holds: numbers that another tool has logged, in place of what a capture measures."""

from __future__ import annotations

from dataclasses import dataclass

from fp8debug.analysis.run import Run


@dataclass(frozen=True, slots=True)
class Given:
    """The numbers of an imported run, of the part of it that is looked at."""

    source: str
    """te-log: debug logs of Transformer Engine"""
    n_numbers: int
    statistics: tuple[str, ...]
    """What they are, such as `underflow_all`."""
    n_at_floor: int
    """Those that are printed as zero and need not be: too small for the log's decimals."""
    n_nonfinite: int
    """Those that are NaN or infinite."""


_NUMBERS = """
select
    count(*), coalesce(list_sort(list(distinct statistic)), []),
    count(*) filter (at_floor and statistic not in ('underflow_all', 'overflow')), count(*) filter (not isfinite(value))
from statistics
"""


def given(run: Run) -> Given | None:
    """Count the numbers; None for a run that was captured."""
    source = run.manifest.options.get("imported_from")
    if source is None:
        return None
    n, statistics, n_at_floor, n_nonfinite = run.sql(_NUMBERS).fetchall()[0]
    return Given(str(source), n, tuple(statistics), n_at_floor, n_nonfinite)
