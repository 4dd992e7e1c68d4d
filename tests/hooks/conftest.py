"""Recording a model in this process, and reading a run directory back without any of our own readers."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet as pq
import pytest
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import fp8debug
from fp8debug.hooks.session import Session

KEY = ("step", "microbatch", "call", "pass", "layer", "tensor")
Row = dict[str, Any]


class Recorded:
    """A run directory as plain rows."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def manifest(self) -> dict[str, Any]:
        manifest: dict[str, Any] = json.loads((self.path / "run.json").read_text())
        return manifest

    def parts(self, table: str) -> list[Path]:
        return sorted((self.path / table).glob("rank=*/part-*.parquet"))

    def rows(self, table: str, **cells: object) -> list[Row]:
        """Rows of all parts, in order, that have these cells (`pass_` for `pass`)."""
        wanted = {name.rstrip("_"): value for name, value in cells.items()}
        rows = [row for part in self.parts(table) for row in pq.ParquetFile(part).read().to_pylist()]
        return [row for row in rows if all(row[name] == value for name, value in wanted.items())]

    def row(self, table: str, **cells: object) -> Row:
        """The only row that has these cells."""
        (row,) = self.rows(table, **cells)
        return row

    def keys(self, table: str = "tensors") -> list[str]:
        """`step/microbatch/call pass layer.tensor` of each row, in order of observation."""
        rows = self.rows(table)
        assert [row["seq"] for row in rows] == sorted(row["seq"] for row in rows)
        return ["{}/{}/{} {} {}.{}".format(*(row[name] for name in KEY)) for row in rows]


Attach = Callable[..., Session]


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    """What `attach` has recorded."""
    return Recorded(tmp_path / "run")


@pytest.fixture
def attach(tmp_path: Path) -> Attach:
    """`fp8debug.attach` into `recorded`, each step sampled."""

    def start(model: nn.Module, **options: Any) -> Session:
        defaults: dict[str, Any] = {"run_dir": tmp_path / "run", "every": 1, "engine": "torch", "quiet": True}
        return fp8debug.attach(model, **defaults | options)

    return start


@pytest.fixture(scope="session")
def trainings() -> ModuleType:
    """The module of small trainings beside this file."""
    spec = importlib.util.spec_from_file_location("trainings", Path(__file__).with_name("trainings.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["trainings"] = module
    spec.loader.exec_module(module)
    return module


class Zygote:
    """A process that has imported everything and forks itself for each training: two seconds spared each time."""

    def __init__(self, script: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, name: str, folder: Path, **options: Any) -> int:
        """Start one training that records into `folder/run`; returns its pid."""
        folder.mkdir()
        assert self._process.stdin is not None
        print(json.dumps([name, str(folder), options]), file=self._process.stdin, flush=True)
        return int(self._answer())

    def run(self, name: str, folder: Path, **options: Any) -> dict[str, Any]:
        """Run one training to its end; returns its facts."""
        self.start(name, folder, **options)
        assert self.wait() == 0
        facts: dict[str, Any] = json.loads((folder / "facts.json").read_text())
        return facts

    def wait(self) -> int:
        """The wait status of the training that was started last."""
        return int(self._answer())

    def close(self) -> None:
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """Runs trainings under AutoAttach in processes of their own."""
    running = Zygote(Path(__file__).with_name("trainings.py"))
    yield running
    running.close()


@pytest.fixture(scope="session")
def read_run() -> Callable[[Path], Recorded]:
    """Any run directory as `Recorded`."""
    return Recorded


class Log(TorchDispatchMode):
    """Names of the operations that it sees."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **kwargs or {})


@pytest.fixture(scope="session")
def operation_log() -> type[Log]:
    """A dispatch mode of the script's own."""
    return Log
