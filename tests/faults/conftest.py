"""Damaged inputs, as the benchmark makes them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def fuzz(repository: Path) -> ModuleType:
    """The benchmark as a module: `KINDS`, `make_samples`, `run_input`, `run_command`."""
    for name in ("pages", "fuzz_inputs", "fuzz"):
        if name not in sys.modules:
            spec = importlib.util.spec_from_file_location(name, repository / "benchmarks" / f"{name}.py")
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            spec.loader.exec_module(module)
    return sys.modules["fuzz"]
