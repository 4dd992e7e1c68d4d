"""What every test stands on: one thread a process, no settings leaking in from the person who runs the tests."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

# Before torch, numpy or numba is imported: workers share the machine, and sums keep one order.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = "1"
for _name in [name for name in os.environ if name.startswith("FP8DEBUG_")]:
    del os.environ[_name]

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the source tree."""
    return ROOT


@pytest.fixture(scope="session")
def train_gpt() -> ModuleType:
    """The example training as a module: `build_model`, `load_text`, `batches`, …"""
    return _load(ROOT / "examples" / "train_gpt.py")


@pytest.fixture(scope="session")
def synthetic_run() -> ModuleType:
    """Run directories made of chosen tensors: `SyntheticRun`, `ForcedScale`, `as_bfloat16`, …"""
    return _load(ROOT / "tests" / "synthetic_run.py")


@pytest.fixture(scope="session")
def cast_oracles() -> ModuleType:
    """Other implementations of the casts and what to ask them: `agreed_codes`, `every_bf16`, `around_values`, …"""
    return _load(ROOT / "benchmarks" / "cast_oracles.py")


@pytest.fixture(scope="session")
def emulated_training() -> ModuleType:
    """Training the demo GPT under emulation, as the benchmark does: `VARIANTS`, `train`."""
    return _load(ROOT / "benchmarks" / "emulated_training.py")


def _load(path: Path) -> ModuleType:
    if path.stem not in sys.modules:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
    return sys.modules[path.stem]


@pytest.fixture(scope="session")
def golden() -> Callable[[str, str], None]:
    """`golden(name, text)` compares text with tests/golden/<name>; with UPDATE_GOLDEN=1 it writes the file instead."""

    def check(name: str, text: str) -> None:
        path = ROOT / "tests" / "golden" / name
        if os.environ.get("UPDATE_GOLDEN"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8"), (
            f"differs from tests/golden/{name}; UPDATE_GOLDEN=1 rewrites it"
        )

    return check
