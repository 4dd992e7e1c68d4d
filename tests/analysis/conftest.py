"""Runs made of chosen tensors, and a connection with every macro."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from fp8debug.analysis import Run, open_run

if TYPE_CHECKING:
    from tests.synthetic_run import SyntheticRun

NewRun = Callable[..., "SyntheticRun"]


@pytest.fixture
def new_run(tmp_path: Path, synthetic_run: ModuleType) -> NewRun:
    """`new_run(name="run", **manifest)` starts a run directory below the test's own folder."""

    def build(name: str = "run", **manifest: Any) -> SyntheticRun:
        run: SyntheticRun = synthetic_run.SyntheticRun(tmp_path / name, **manifest)
        return run

    return build


@pytest.fixture(scope="session")
def empty_run(synthetic_run: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """An open run in which nothing was recorded."""
    written: SyntheticRun = synthetic_run.SyntheticRun(tmp_path_factory.mktemp("empty"))
    with open_run(written.path, threads=1) as run:
        yield run


@pytest.fixture(scope="session")
def con(empty_run: Run) -> duckdb.DuckDBPyConnection:
    """A connection with every view and macro, and no data."""
    return empty_run.con
