"""The shipped .sql files keep their conventions, and every column a person sees has a meaning."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.resources import files
from typing import TYPE_CHECKING

import pytest

from fp8debug.analysis import Run, open_run
from fp8debug.analysis.listing import macros, views_with_columns
from fp8debug.analysis.parts import duckdb_type
from fp8debug.analysis.views import sql_files
from fp8debug.schema import TABLES

if TYPE_CHECKING:
    from tests.synthetic_run import SyntheticRun

NewRun = Callable[..., "SyntheticRun"]

NAMES = sorted(entry.name for entry in (files("fp8debug.analysis") / "sql").iterdir())
VIEWS = [file.name for file in sql_files().values() if "macro" not in file.kind]


@pytest.mark.parametrize("file_name", NAMES)
def test_file_keeps_the_conventions(file_name: str) -> None:
    text = (files("fp8debug.analysis") / "sql" / file_name).read_text(encoding="utf-8")
    found = re.fullmatch(r"\d\d_(\w+)\.sql", file_name)
    assert found is not None
    first = text.splitlines()[0]
    assert first.startswith("-- ")
    assert first.endswith(".")
    created = re.findall(r'^create or replace (?:view|temp table|macro) "?(\w+)', text, re.MULTILINE)
    assert created == [found[1]]
    assert text.endswith(";\n")
    assert not any(line != line.rstrip() or len(line) > 120 for line in text.splitlines())


@pytest.mark.parametrize("name", VIEWS)
def test_view_is_there_and_empty_in_an_empty_run(empty_run: Run, name: str) -> None:
    relation = empty_run.table(name)
    assert relation.fetchall() == []
    assert relation.columns


def test_stored_tables_have_the_schema_types(empty_run: Run) -> None:
    for table in TABLES.values():
        relation = empty_run.con.sql(f'from stored."{table.name}"')
        assert relation.columns == list(table.column_names)
        assert [str(kind) for kind in relation.types] == [duckdb_type(column.type) for column in table.columns]


def test_a_view_creates_only_what_it_needs(new_run: NewRun) -> None:
    with open_run(new_run().path) as run:
        run.sql("from tensors")
        made = {
            row[0] for row in run._con.execute("select view_name from duckdb_views() where not internal").fetchall()
        }
    assert {"tensors", "records"} <= made
    assert "tensor_errors" not in made


def test_every_column_has_a_meaning(empty_run: Run) -> None:
    views = views_with_columns(empty_run.con)
    assert [view.name for view in views] == [
        "steps", "layers", "tensors", "scales", "errors", "histograms", "values", "evals", "events", "blocks",
        "channels", "gemms", "statistics", "wsample", "given_statistics", "scale_gaps", "tensor_errors",
        "block_errors", "gemm_errors", "channel_stats", "payloads", "payload_checks", "row_classes", "evidence",
        "frozen_scales", "hits", "candidates", "watch", "isolated_hits", "layer_summary", "gemm_steps",
        "operand_steps", "tensor_steps", "octaves", "shards", "merged_histograms", "merged_tensors", "group_scales",
        "merged_errors", "merged_error_ratios", "rank_spread", "replica_checks",
    ]  # fmt: skip
    silent = [f"{view.name}.{column.name}" for view in views for column in view.columns if not column.meaning]
    assert silent == []
    assert all(view.meaning and view.columns for view in views)


def test_macros_are_listed_with_their_arguments() -> None:
    listed = {macro.name: macro for macro in macros()}
    assert listed["fake_quantize"].signature == "fake_quantize(x, scale, fmt)"
    assert listed["whatif"].is_table
    assert not listed["e4m3"].is_table
    assert "round_to" not in listed
