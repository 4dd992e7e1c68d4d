"""A run of several ranks that shares a delayed scale, and one small Ray cluster for all tests."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fp8debug.analysis.engine.on_ray import RayEngine

if TYPE_CHECKING:
    from tests.synthetic_run import SyntheticRun

N_RANKS, N_UNSAMPLED, N_STEPS = 3, 16, 24
RECIPE = "delayed:amax_history_len=1"
FMT_MAX = {"x": 448.0, "dy": 57344.0}


@pytest.fixture(scope="session")
def several_ranks(synthetic_run: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rank 1 sees a hundredfold x in every third step, so that its scale and the group's differ from the others'."""
    path = tmp_path_factory.mktemp("engine") / "ranks"
    recipes = ["current", RECIPE]
    run: SyntheticRun = synthetic_run.SyntheticRun(
        path, world_size=N_RANKS, recipes=recipes, tensors=["x", "dy"], status="closed",
        layers=[synthetic_run.layer_info("fc1")],
    )  # fmt: skip
    rng = np.random.default_rng(0)
    last: dict[tuple[int, str], float] = {}
    for step in range(N_STEPS):
        for rank in range(N_RANKS):
            for tensor in ("x", "dy"):
                factor = 100 if (rank, tensor, step % 3) == (1, "x", 1) else 1
                values = synthetic_run.as_bfloat16(rng.normal(size=(32, 32)) * factor)
                sampled = step >= N_UNSAMPLED  # before that, the history only warms up
                amax = last.get((rank, tensor))
                scale = 1.0 if amax is None else float(np.float32(FMT_MAX[tensor] / amax))
                forced = synthetic_run.ForcedScale(scale, RECIPE, "simulated", amax_used=amax, history_len=1)
                seq = run.add(
                    "fc1", tensor, values, step=step, rank=rank, scales=(forced,), placement="shard(0)",
                    shard=f"{rank}/{N_RANKS}", sampled=sampled,
                )  # fmt: skip
                last[rank, tensor] = float(np.abs(values).max())
                if not sampled:
                    continue
                run.add_row(
                    "channels", step=step, microbatch=0, call=0, rank=rank, layer="fc1", tensor=tensor, seq=seq,
                    axis="K", measure="sqnr_db", recipe=RECIPE, fmt="E4M3", alternate=False, n_channels=4, n_zero=0,
                    n_exact=0, bins=[rank, 10, 30], counts=[1, 2, 1], **{"pass": "forward"},
                )  # fmt: skip
        if step % 4 == 3:
            run.write()  # several parts a rank
    return run.write()


@pytest.fixture(scope="module")
def ray_engine() -> Iterator[RayEngine]:
    """A cluster of two cores on this machine, which is gone with the module's tests: its daemons never rest."""
    engine = RayEngine(n_cores=2, n_partitions=3, max_retries=1)
    yield engine
    engine.close()
    assert not importlib.import_module("ray").is_initialized()
