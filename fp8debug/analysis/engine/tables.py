"""Tables of an open run that reductions fill: `sql/<table>.given.sql` says what each is asked about."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

FILLED_BY = {
    "median_channels": "median_channels",
    "moved_sums": "error_sums",
    "payload_counts": "payload_counts",
    "row_class_moments": "row_class_moments",
}
"""Table -> its reduction."""


@cache
def given_of(table: str) -> str:
    """The query for what the reduction of a table is asked about."""
    return (files("fp8debug.analysis.engine") / "sql" / f"{table}.given.sql").read_text(encoding="utf-8")
