"""Runs of several ranks, written as the recorder writes them: each rank by itself, with its own delayed scales."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest

from fp8debug.recipes import DelayedScaling, DelayedState, parse_recipe
from fp8debug.rundir import RankInfo

if TYPE_CHECKING:
    from tests.synthetic_run import SyntheticRun

Array = npt.NDArray[np.float32]
RECIPE = "delayed:amax_history_len=4"


class RankedRun:
    """A run of several ranks; `give` adds one tensor as each rank sees it."""

    def __init__(self, module: ModuleType, path: Path, world_size: int, **manifest: Any) -> None:
        manifest = {"status": "closed", "recipes": ["current", RECIPE], "tensors": ["x", "w", "dy"]} | manifest
        self.run: SyntheticRun = module.SyntheticRun(path, world_size=world_size, **manifest)
        self._module = module
        self._world_size = world_size
        self._states: dict[tuple[int, str, str], DelayedState] = {}

    def give(
        self,
        layer: str,
        tensor: str,
        pieces: Mapping[int, Array],
        *,
        step: int,
        placement: str = "local",
        shards: Mapping[int, str] | None = None,
        owners: Mapping[int, int] | None = None,
        sampled: bool = True,
        **kwargs: Any,
    ) -> None:
        """One pass: `pieces` is what each rank holds, `owners` whose replica it is where it is one.

        As the recorder has it, a replica that is not the owner's is not sampled and enters no history.
        """
        recipe = parse_recipe(RECIPE)
        assert isinstance(recipe, DelayedScaling)
        for rank, values in pieces.items():
            owner = (owners or {}).get(rank, rank)
            scales = ()
            if owner == rank:
                formats = recipe.formats_for(tensor)
                key = (rank, layer, tensor)
                state = self._states.setdefault(key, recipe.new_state([fmt for fmt, _ in formats]))
                scales = tuple(
                    self._module.ForcedScale(
                        float(state.scale(fmt)), RECIPE, "simulated", "ok" if state.n_rolls else "warmup",
                        state.n_rolls, fmt.name, alternate,
                    )
                    for fmt, alternate in formats
                )  # fmt: skip
                state.observe(float(np.abs(values).max()) if values.size else 0.0)
                state.roll(step)
            self.run.add(
                layer, tensor, values, step=step, rank=rank, placement=placement, shard=(shards or {}).get(rank),
                replica_of=owner, sampled=sampled and owner == rank, scales=scales,
                checksum=zlib.crc32(values.tobytes()) if sampled else None, **kwargs,
            )  # fmt: skip

    def steps(self, steps: range, ranks: range | None = None) -> None:
        """Rows of the table `steps`."""
        for step in steps:
            for rank in ranks or range(self._world_size):
                self.run.add_row("steps", step=step, rank=rank, loss=1.0, sampled=True)

    def say(self, rank: int, *layers: str, **kwargs: Any) -> None:
        """Write what a rank says of itself."""
        infos = [self._module.layer_info(name) for name in layers]
        defaults: dict[str, Any] = {"world_size": self._world_size, "host": "here", "pid": 1, "status": "closed"}
        self.run.run_dir.write_rank(RankInfo(rank=rank, layers=infos, **(defaults | kwargs)))

    def write(self) -> Path:
        """Write all rows."""
        return self.run.write()


NewRanks = Callable[..., RankedRun]


@pytest.fixture
def new_ranks(tmp_path: Path, synthetic_run: ModuleType) -> NewRanks:
    """`new_ranks(world_size, name="run", **manifest)` starts a run of so many ranks."""

    def build(world_size: int, name: str = "run", **manifest: Any) -> RankedRun:
        return RankedRun(synthetic_run, tmp_path / name, world_size, **manifest)

    return build
