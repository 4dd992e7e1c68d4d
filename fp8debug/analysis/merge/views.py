"""Views that are other ones in a run of several ranks, so that a run of one rank pays nothing for them.

Each file of `merge/sql` takes the place of the shipped view of its name: the rules, the summaries and the what-if read
the same names in both.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib.resources import files

import duckdb

from fp8debug.analysis.merge.replay import fill_group_replay
from fp8debug.analysis.views import SqlFile, parse_file, sql_files
from fp8debug.rundir import Manifest


@cache
def views_of_ranks() -> dict[str, SqlFile]:
    """The files by name. Unlike shipped ones they may use what is sorted after the one they replace."""
    found = {}
    for entry in sorted((files("fp8debug.analysis.merge") / "sql").iterdir(), key=lambda e: e.name):
        name = entry.name.removesuffix(".sql")
        known = [other for other in sql_files() if other != name]
        found[name] = parse_file(name, entry.read_text(encoding="utf-8"), known)
    return found


def filled_tables(manifest: Manifest) -> dict[str, Callable[[duckdb.DuckDBPyConnection], None]]:
    """Tables of those that Python fills."""
    return {"group_replay": partial(fill_group_replay, manifest=manifest)}
