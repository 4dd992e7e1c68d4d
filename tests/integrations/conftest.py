"""Trainings under trainers are run as a user's scripts are: each in a process of its own, which loads the trainer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pytest

SCRIPTS = Path(__file__).with_name("scripts")
RunScript = Callable[..., str]


@pytest.fixture(scope="session")
def run_script(warm_trainers: Any) -> RunScript:
    """`run_script(folder, "hf_trainer.py", *arguments, attach=[...])`: the script's standard output."""

    def run(folder: Path, name: str, *arguments: str, attach: list[str] | None = None, ranks: int = 1) -> str:
        script = [str(SCRIPTS / name), *arguments]
        command = script if attach is None else ["-m", "fp8debug", "attach", *attach, *script]
        environment = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}
        if ranks == 1:
            done = warm_trainers.run(folder, *command, **environment)
        else:
            done, *others = [rank.wait() for rank in warm_trainers.start_ranks(ranks, folder, *command, **environment)]
            assert [rank.returncode for rank in others] == [0] * (ranks - 1), others[0].stderr[-3000:]
        assert done.returncode == 0, done.stderr[-3000:]
        return str(done.stdout)

    return run


@pytest.fixture(scope="session")
def weight_gradient_error() -> Callable[[duckdb.DuckDBPyConnection, str, int], float]:
    return _weight_gradient_error


def _weight_gradient_error(con: duckdb.DuckDBPyConnection, layer: str, step: int) -> float:
    """Largest difference of the sum of dyT x over micro-batches from the weight gradient, relative to its largest."""

    def matrix(tensor: str, microbatch: int) -> npt.NDArray[np.float64]:
        rows = con.execute(
            "select values from values where layer = ? and tensor = ? and step = ? and microbatch = ? "
            "and pass in ('forward', 'backward') order by row",
            [layer, tensor, step, microbatch],
        ).fetchall()
        return np.array([row[0] for row in rows])

    errors = []
    for microbatch in (0, 1):
        product = matrix("dy", microbatch).T @ matrix("x", microbatch)
        recorded = matrix("dw", microbatch)
        errors.append(float(np.abs(product - recorded).max() / np.abs(recorded).max()))
    return max(errors)
