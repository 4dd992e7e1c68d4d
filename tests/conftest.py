"""What every test stands on: one thread a process, no settings leaking in from the person who runs the tests."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

# Before torch, numpy or numba is imported: workers share the machine, and sums keep one order.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = "1"
for _name in [name for name in os.environ if name.startswith("FP8DEBUG_")]:
    del os.environ[_name]

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def no_graphs_left() -> Iterator[None]:
    """Whatever a test has compiled goes with it: a capture that finds graphs has them made again, and says so."""
    yield
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None and dynamo.convert_frame.input_codes.seen:
        dynamo.reset()


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
def wide_run() -> ModuleType:
    """Run directories of many layers and steps: `write_wide_run(path, n_layers, n_steps)`."""
    return _load(ROOT / "tests" / "wide_run.py")


@pytest.fixture(scope="session")
def cast_oracles() -> ModuleType:
    """Other implementations of the casts and what to ask them: `agreed_codes`, `every_bf16`, `around_values`, …"""
    return _load(ROOT / "benchmarks" / "cast_oracles.py")


@pytest.fixture(scope="session")
def emulated_training() -> ModuleType:
    """Training the demo GPT under emulation, as the benchmark does: `VARIANTS`, `train`."""
    return _load(ROOT / "benchmarks" / "emulated_training.py")


@pytest.fixture(scope="session")
def false_alarms() -> ModuleType:
    """Healthy trainings and what the rules say of them, as the benchmark counts it: `record`, `alarms`, `Training`."""
    return _load(ROOT / "benchmarks" / "false_alarms.py")


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


class WarmPython:
    """Starts Python processes that have imported `modules` already; see warm.py."""

    def __init__(self, *modules: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "warm.py"), *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(self, folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """As `subprocess.run([sys.executable, *arguments], cwd=folder)`, its output captured; numba is not loaded."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with tempfile.TemporaryDirectory() as place:
            files = {name: f"{place}/{name}" for name in ("stdout", "stderr")}
            settings = {"FP8DEBUG_ENGINE": "torch", **environment}
            request = {"arguments": arguments, "folder": str(folder), "environment": settings, **files}
            print(json.dumps(request), file=self._process.stdin, flush=True)
            code = int(self._process.stdout.readline())
            texts = {name: Path(file).read_text(encoding="utf-8") for name, file in files.items()}
        return subprocess.CompletedProcess(arguments, code, **texts)

    def close(self) -> None:
        """No more of them."""
        self._process.communicate()


@pytest.fixture(scope="session")
def warm_python() -> Iterator[WarmPython]:
    """Processes that have imported torch and fp8debug."""
    warm = WarmPython("fp8debug.cli.watched", "fp8debug.analysis.run", "torch._dynamo")
    yield warm
    warm.close()


@pytest.fixture(scope="session")
def warm_trainers() -> Iterator[WarmPython]:
    """Processes that have imported the trainers as well."""
    trainers = ("transformers.trainer", "transformers.models.llama.modeling_llama", "accelerate", "lightning.pytorch")
    warm = WarmPython("fp8debug.cli.watched", "torchao.float8", *trainers)
    yield warm
    warm.close()
