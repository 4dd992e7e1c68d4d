"""The rows of a view, or those of them that are wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fp8debug.analysis.export.narrowing import Narrowing
from fp8debug.analysis.run import Run
from fp8debug.analysis.views import sql_files
from fp8debug.errors import Fp8DebugError, UsageError, nearest

if TYPE_CHECKING:
    import duckdb

DEFAULT_VIEW = "operand_steps"

_BY_STEP = ("step", "layer", "tensor", "recipe", "fmt")
_SHOWN = 5
"""Names told of many."""


def public_views() -> tuple[str, ...]:
    """Views meant for people."""
    return tuple(file.name for file in sql_files().values() if not file.is_internal and "macro" not in file.kind)


def rows_of_view(run: Run, view: str, narrowing: Narrowing | None = None) -> duckdb.DuckDBPyRelation:
    """The rows of a view that are wanted; those of the default view by step, else as the view has them.

    Raises:
        UsageError: no such view, a view without a column that is to be narrowed, or something asked for that was not
            recorded.
    """
    if view not in public_views():
        near = nearest(view, public_views())
        hint = f"nearest names: {', '.join(near)}" if near else "`fp8debug sql` lists them"
        raise UsageError(f"there is no view {view!r}; {hint}")
    wanted = narrowing or Narrowing()
    columns = run.table(view).columns
    lacking = [column for column in wanted.asked if column not in columns]
    if lacking:
        raise UsageError(
            f"the view {view} has no column {lacking[0]}, so --{_OPTIONS[lacking[0]]} cannot narrow it; "
            f"its columns are {', '.join(columns)}"
        )
    order = f" order by {', '.join(_BY_STEP)}" if view == DEFAULT_VIEW else ""
    return run.sql(f'from "{view}" where {wanted.condition(run, columns)}{order}')


_OPTIONS = {"layer": "layer", "tensor": "tensor", "step": "steps", "recipe": "recipe"}


def nothing_selected(run: Run, view: str = DEFAULT_VIEW, narrowing: Narrowing | None = None) -> Fp8DebugError:
    """The error for an empty export: what was asked of, and what there is."""
    if run.notice is not None:
        return Fp8DebugError(f"{run.notice}; nothing to export")
    columns = [column for column in _BY_STEP[:-1] if column in run.table(view).columns]
    there = [words for column in columns if (words := _what_there_is(run, view, column))]
    if not there:
        return Fp8DebugError(f"the view {view} of {run.path} has no rows; nothing to export")
    asked = [f"--{_OPTIONS[column]}" for column in (narrowing or Narrowing()).asked]
    leave = f"{' and '.join(asked)} {'leave' if len(asked) > 1 else 'leaves'}" if asked else "there is"
    return UsageError(f"{leave} no row of {view} to export; the view has {'; '.join(there)}")


def _what_there_is(run: Run, view: str, column: str) -> str:
    if column == "step":
        first, last = run.sql(f'select min(step), max(step) from "{view}"').fetchall()[0]
        return "" if first is None else f"steps {first} to {last}"
    query = f'select distinct "{column}" as name from "{view}" where name is not null order by name'
    names = [row[0] for row in run.sql(query).fetchall()]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{column}s {', '.join(names[:_SHOWN])}{more}" if names else ""
