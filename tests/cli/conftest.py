"""Programs run twice, by `python` and by `fp8debug attach`, in a folder of their own; runs to report on."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ENTRY = Path(__file__).resolve().parent.parent / "data" / "cli" / "entry.py"


@dataclass(frozen=True)
class Ran:
    """How a process ended."""

    code: int
    out: bytes
    err: bytes


@dataclass(frozen=True)
class Place:
    """A folder with programs in it."""

    folder: Path

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def python(self, *arguments: str, stop_with: signal.Signals | None = None, **variables: str) -> Ran:
        """`python <arguments>`; with `stop_with`, that signal is sent once the program has printed a line."""
        return self._run([sys.executable, *arguments], variables, stop_with)

    def attach(
        self,
        *arguments: str,
        quiet: bool = True,
        interpreter: Sequence[str] = (),
        stop_with: signal.Signals | None = None,
        **variables: str,
    ) -> Ran:
        """`fp8debug attach <arguments>`, with a stand-in for the hooks."""
        (self.folder / "calls.jsonl").unlink(missing_ok=True)
        variables = {"FAKE_LOG": str(self.folder / "calls.jsonl"), **variables}
        command = [sys.executable, *interpreter, str(ENTRY), "attach", *(["-q"] if quiet else []), *arguments]
        return self._run(command, variables, stop_with)

    def calls(self) -> list[Any]:
        """What the hooks were told by the last `attach`."""
        path = self.folder / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def _run(self, command: Sequence[str], variables: Mapping[str, str], stop_with: signal.Signals | None) -> Ran:
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        first = b""
        if stop_with is not None:
            assert process.stdout is not None
            first = process.stdout.readline()
            process.send_signal(stop_with)
        out, err = process.communicate(timeout=60)
        return Ran(process.returncode, first + out, err)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path.resolve())


@pytest.fixture(scope="session")
def runs() -> ModuleType:
    """The builders of `report_runs.py`."""
    path = Path(__file__).with_name("report_runs.py")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def pseudo_terminal() -> ModuleType:
    """Programs in a terminal: `Terminal`, `Screen`."""
    path = Path(__file__).resolve().parent.parent / "pseudo_terminal.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def shared(runs: ModuleType, synthetic_run: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs `faulty` and `healthy`, which tests only read."""
    folder = tmp_path_factory.mktemp("report").resolve()
    runs.write_faulty(synthetic_run, folder / "faulty")
    runs.write_healthy(synthetic_run, folder / "healthy")
    return folder
