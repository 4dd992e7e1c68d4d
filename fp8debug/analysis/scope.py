"""Look at a part of a run only: some steps, layers or recipes, as if nothing else had been recorded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import duckdb

from fp8debug.analysis.parts import quote_text
from fp8debug.errors import UsageError, nearest
from fp8debug.rundir import Manifest

_KEYED = ("tensors", "blocks", "channels", "gemms", "statistics")
"""Tables that are narrowed by layer and step; the other ones are only read beside `tensors`."""
_BY_RECIPE = ("errors", "scales", "blocks", "channels", "gemms", "statistics")


@dataclass(frozen=True, slots=True)
class Scope:
    """What is looked at; an empty field leaves nothing out.

    The run's own figures (steps, loss) stay whole: only records of tensors are left out.
    """

    recipes: tuple[str, ...] = ()
    """Recipes as the run names them, or only their kind, such as `delayed`."""
    layer: str = ""
    """Regex for re.search on the layer's name."""
    steps: tuple[tuple[int, int | None], ...] = ()
    """Ranges (first, last), both included; last None: to the end."""


def restrict(con: duckdb.DuckDBPyConnection, scope: Scope, manifest: Manifest) -> None:
    """Narrow the stored views of `con` to `scope`, before any view stands on them.

    Raises:
        UsageError: a regex that does not compile, or a recipe, layer or step that the run does not have.
    """
    conditions: dict[str, list[str]] = {}
    if scope.recipes:
        by_recipe = recipe_condition(con, scope.recipes, manifest)
        for table in _BY_RECIPE:
            conditions.setdefault(table, []).append(by_recipe)
    by_key = []
    if scope.layer:
        by_key.append(f"layer in ({_literals(matching_layers(con, scope.layer, manifest))})")
    if scope.steps:
        by_key.append(steps_condition(con, scope.steps))
    for table in _KEYED:
        conditions.setdefault(table, []).extend(by_key)
    for table, wanted in conditions.items():
        if wanted:
            _narrow(con, table, " and ".join(wanted))


def recipe_condition(con: duckdb.DuckDBPyConnection, wanted: Sequence[str], manifest: Manifest) -> str:
    tables = " union ".join(f"select recipe from stored.{table}" for table in _BY_RECIPE)
    known = _column(con, f"select recipe from ({tables}) where recipe is not null order by recipe")
    known += [recipe for recipe in manifest.recipes if recipe not in known]
    kept = {recipe for word in wanted for recipe in _recipes_meant(word, known)}
    return f"(recipe is null or recipe in ({_literals(sorted(kept))}))"


def _recipes_meant(word: str, known: Sequence[str]) -> list[str]:
    meant = [word] if word in known else [recipe for recipe in known if recipe.partition(":")[0] == word]
    if not meant:
        raise UsageError(f"recipe {word!r} was not recorded; this run has: {', '.join(known) or 'none'}")
    return meant


def matching_layers(con: duckdb.DuckDBPyConnection, pattern: str, manifest: Manifest) -> list[str]:
    """Recorded layers that the regex is found in.

    Raises:
        UsageError: it does not compile, or matches none.
    """
    try:
        regex = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(
            f"layer pattern {pattern!r} is not a regular expression: {error}; expected Python `re` syntax, "
            r"for example 'blocks\.[0-3]\.'"
        ) from error
    names = _column(con, "select distinct layer from stored.tensors order by layer")
    matching = [name for name in names if regex.search(name)]
    if not matching:
        known = names or [layer.name for layer in manifest.layers]
        near = nearest(pattern, known) or known[:3]
        hint = f"nearest names: {', '.join(near)}" if near else "no layer was recorded"
        raise UsageError(f"layer pattern {pattern!r} matches none of the {len(names)} recorded layers; {hint}")
    return matching


def steps_condition(con: duckdb.DuckDBPyConnection, ranges: Sequence[tuple[int, int | None]]) -> str:
    """The ranges, both ends included, as an SQL condition on `step`.

    Raises:
        UsageError: no record is in them.
    """
    condition = " or ".join(
        f"step >= {first:d}" if last is None else f"step between {first:d} and {last:d}" for first, last in ranges
    )
    query = f"select count(*) filter ({condition}), min(step), max(step) from stored.tensors"
    n_kept, first, last = con.execute(query).fetchall()[0]
    if not n_kept and first is not None:
        raise UsageError(f"none of the steps asked for was recorded; this run has steps {first} to {last}")
    return f"({condition})"


def _narrow(con: duckdb.DuckDBPyConnection, table: str, condition: str) -> None:
    con.execute(f"alter view stored.{table} rename to all_{table}")
    con.execute(f"create view stored.{table} as select * from stored.all_{table} where {condition}")


def _column(con: duckdb.DuckDBPyConnection, query: str) -> list[str]:
    return [row[0] for row in con.execute(query).fetchall()]


def _literals(words: Iterable[str]) -> str:
    return ", ".join(quote_text(word) for word in words)
