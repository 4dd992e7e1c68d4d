"""What every test stands on: one thread a process, no settings leaking in from the person who runs the tests."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

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


@dataclass
class Started:
    """A program under way."""

    arguments: tuple[str, ...]
    connection: socket.socket
    files: dict[str, Path]
    """stdout, stderr"""

    def wait(self) -> subprocess.CompletedProcess[str]:
        """Wait for its end; what it has printed is captured."""
        with self.connection, self.connection.makefile("r") as answer:
            code = int(answer.readline())
        texts = {name: file.read_text(encoding="utf-8") for name, file in self.files.items()}
        return subprocess.CompletedProcess(self.arguments, code, **texts)


class WarmPython:
    """Starts Python processes that have imported `modules` already; see warm.py. All workers share them."""

    def __init__(self, folder: Path, name: str, *modules: str) -> None:
        self._address = folder / f"{name}.socket"
        self._places = folder / name
        self._places.mkdir(exist_ok=True)
        with open(folder / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self._is_served():
                self._serve(modules)
            self._stay = self._connect({"stay": True})

    def _is_served(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(self._address)):
                return False
            probe.sendall(b"{}\n")
            return True

    def _serve(self, modules: Sequence[str]) -> None:
        self._address.unlink(missing_ok=True)  # of one that has ended with the worker that wanted it
        server = [sys.executable, str(ROOT / "tests" / "warm.py"), str(self._address), *modules]
        nothing = subprocess.DEVNULL
        subprocess.run(["setsid", "--fork", *server], stdin=nothing, stdout=nothing, stderr=nothing, check=True)

    def _connect(self, request: Mapping[str, Any]) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        while connection.connect_ex(str(self._address)):  # it was started, but does not listen yet
            time.sleep(0.01)
        connection.sendall(f"{json.dumps(request)}\n".encode())
        return connection

    def start(self, folder: Path, *arguments: str, **environment: str) -> Started:
        """As `subprocess.Popen([sys.executable, *arguments], cwd=folder)`; numba is not loaded."""
        place = Path(tempfile.mkdtemp(dir=self._places))
        files = {name: place / name for name in ("stdout", "stderr")}
        settings = {"FP8DEBUG_ENGINE": "torch", **environment}
        request = {"arguments": arguments, "folder": str(folder), "environment": settings}
        connection = self._connect({**request, **{name: str(file) for name, file in files.items()}})
        return Started(arguments, connection, files)

    def run(self, folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """As `subprocess.run([sys.executable, *arguments], cwd=folder)`, its output captured."""
        return self.start(folder, *arguments, **environment).wait()

    def start_ranks(self, n: int, folder: Path, *arguments: str, **environment: str) -> list[Started]:
        """The processes of one distributed training, as a launcher starts them on one machine."""
        with socket.socket() as free:
            free.bind(("localhost", 0))
            address = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free.getsockname()[1])}
        group = {"WORLD_SIZE": str(n), "LOCAL_WORLD_SIZE": str(n), **address, **environment}
        return [self.start(folder, *arguments, RANK=str(r), LOCAL_RANK=str(r), **group) for r in range(n)]

    def close(self) -> None:
        """No more of them."""
        self._stay.close()


class Once:
    """What is made once for all workers: by the first that wants it, while the others wait."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, name: str, make: Callable[[Path], None]) -> Path:
        """The folder that `make` was called with."""
        made = self._folder / name
        with open(self._folder / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not made.exists():
                unfinished = Path(tempfile.mkdtemp(dir=self._folder))
                make(unfinished)
                unfinished.rename(made)
        return made


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """`once(name, make)`: a folder that is made once a session, however many workers there are."""
    return Once(_shared_folder(tmp_path_factory))


def _shared_folder(factory: pytest.TempPathFactory) -> Path:
    """One for all workers of this session."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


WATCHED = ("fp8debug.cli.watched", "fp8debug.cli.main", "fp8debug.hooks.measure.counting.torch_ops")
IMPORTED_LATER = ("torch._dynamo", "pandas", "pyarrow.pandas_compat", "pydantic")
"""By optimizers, by pyarrow, by typer, where they are installed: once they are needed."""


@pytest.fixture(scope="session")
def warm_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmPython]:
    """Processes that have imported torch and fp8debug."""
    modules = (*WATCHED, *IMPORTED_LATER, "fp8debug.analysis.run", "torch.distributed.fsdp")
    warm = WarmPython(_shared_folder(tmp_path_factory), "warm_python", *modules)
    yield warm
    warm.close()


@pytest.fixture(scope="session")
def warm_trainers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmPython]:
    """Processes that have imported the trainers as well."""
    trainers = (
        "torchao.float8",
        "transformers.trainer",
        "transformers.models.llama.modeling_llama",
        "accelerate",
        "lightning.pytorch",
    )
    late = (*IMPORTED_LATER, "fp8debug.hooks.measure.counting.numba_engine", "gguf_once")
    folder = _shared_folder(tmp_path_factory)
    warm = WarmPython(folder, "warm_trainers", *WATCHED, *late, *trainers)
    yield warm
    warm.close()
