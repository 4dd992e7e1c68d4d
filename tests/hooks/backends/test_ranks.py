"""Real processes: what each rank records of a distributed training, and that the training takes no notice of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fp8debug.analysis import open_run
from fp8debug.analysis.merge.facts import rank_facts

if TYPE_CHECKING:
    from tests.hooks.backends.conftest import Matrices
    from tests.hooks.conftest import Recorded

ATTACHED = pytest.mark.parametrize("when", ["before", "after"])
"""Attached before or after the model was wrapped."""


class Ranks:
    """What the trainings of `ranks.py` left behind."""

    def __init__(self, folder: Path, open_run: Callable[[Path], Recorded]) -> None:
        self._folder = folder
        self._open = open_run

    def facts(self, name: str) -> list[dict[str, Any]]:
        """What each rank found of one training."""
        group = "on_four" if name in ("hsdp", "tp x fsdp") else "on_two"
        return [json.loads(file.read_text())[name] for file in sorted(self._folder.glob(f"{group}-*.json"))]

    def check_unchanged(self, name: str) -> None:
        """Losses, weights and the number of collectives are those of the bare training, on every rank."""
        for found in self.facts(name):
            assert found["before"] == found["bare"]
            assert found["after"] == found["bare"]
            assert found["bare"]["collectives"] >= 3

    def run(self, name: str) -> Recorded:
        run = self._open(self._folder / name)
        ranks = [json.loads(path.read_text()) for path in sorted(run.path.glob("rank=*.json"))]
        assert {rank["status"] for rank in ranks} == {"closed"}
        assert run.rows("events") == []
        return run

    def placed(self, name: str, layer: str) -> dict[tuple[int, str], tuple[Any, ...]]:
        """(rank, tensor) -> shape, placement, shard and lowest rank with the same data, in the second step."""
        rows = self.run(name).rows("tensors", layer=layer, step=1)
        return {
            (r["rank"], r["tensor"]): (r["shape"], r["placement"], r["shard"], r["replica_of"])
            for r in rows
            if r["tensor"] in ("x", "w", "dy")
        }


@pytest.fixture(scope="module")
def ranks(once: Any, read_run: Callable[[Path], Recorded], warm_python: Any) -> Ranks:
    def train(folder: Path) -> None:
        script = str(Path(__file__).with_name("ranks.py"))
        for last in (False, True):  # on a busy machine gloo has lost a connection, once in many runs
            done = warm_python.run(folder, script, str(folder), PYTHONWARNINGS="ignore")
            if done.returncode == 0:
                return
            assert not last and "gloo/transport" in done.stderr, f"{done.stderr[:3000]} ... {done.stderr[-3000:]}"
            shutil.rmtree(folder)
            folder.mkdir()

    return Ranks(once("ranks", train), read_run)


@ATTACHED
@pytest.mark.captures(
    case="DDP, 2 ranks",
    how="hooks on modules, attached before or after wrapping",
    sees="each rank's own x, dy and dw as local; w as replicate, with the lowest rank that has it",
    limits="gradients are seen before they are reduced: dw is this rank's",
)
def test_ddp(
    when: str,
    ranks: Ranks,
    matrices: Callable[..., Matrices],
    gradients_follow: Callable[..., set[str]],
) -> None:
    ranks.check_unchanged("ddp")
    assert ranks.placed(f"ddp-{when}", "head") == {
        (rank, tensor): placed
        for rank in range(2)
        for tensor, placed in (
            ("x", ([2, 4, 6], "local", None, rank)),
            ("w", ([3, 6], "replicate", None, 0)),
            ("dy", ([2, 4, 3], "local", None, rank)),
        )
    }
    for rank in range(2):
        assert gradients_follow(matrices(ranks.run(f"ddp-{when}"), rank)) == {"block.0", "block.2", "head"}


@ATTACHED
@pytest.mark.parametrize("policy", ["fsdp", "fsdp-bf16"])
@pytest.mark.captures(
    case="FSDP2 with and without a bf16 policy, children of a sharded block and a sharded Linear itself, 2 ranks",
    how="hooks on modules, attached before or after fully_shard",
    sees="the gathered weight, whole and in the dtype of the GEMM, as replicate; x and dy of each rank as local",
    limits="dw is this rank's, before it is reduced",
)
def test_fsdp(
    policy: str,
    when: str,
    ranks: Ranks,
    matrices: Callable[..., Matrices],
    gradients_follow: Callable[..., set[str]],
) -> None:
    ranks.check_unchanged(policy)
    name, low = f"{policy}-{when}", policy == "fsdp-bf16"
    run = ranks.run(name)
    for layer, shape in (("head", [3, 6]), ("block.0", [8, 6])):
        placed = ranks.placed(name, layer)
        assert [placed[rank, "w"] for rank in range(2)] == [(shape, "replicate", None, 0)] * 2
        assert [placed[rank, "dy"][1:] for rank in range(2)] == [("local", None, 0), ("local", None, 1)]
    dtype = "bfloat16" if low else "float32"
    assert {(r["dtype"], r["gemm_dtype"], r["precision_asked"]) for r in run.rows("tensors")} == {(dtype,) * 3}
    got = matrices(run)
    y = got[1, 0, 0, "head", "x"] @ got[1, 0, 0, "head", "w"].T
    np.testing.assert_allclose(got[1, 0, 0, "head", "y"], y, atol=0.02 if low else 1e-6)
    for rank in range(2):
        assert len(gradients_follow(matrices(run, rank), 2.0**-9 if low else 2.0**-23)) == 3


@ATTACHED
@pytest.mark.captures(
    case="TP with DTensor (ColwiseParallel, RowwiseParallel), 2 ranks",
    how="hooks on modules, attached before or after parallelize_module",
    sees="the local part of x, w, y, dy, dw and dx, with shard(dim) and piece, replicate or partial as DTensor has it",
    limits="sums that are still partial are recorded as such and never merged",
)
def test_tensor_parallel(
    when: str,
    ranks: Ranks,
    matrices: Callable[..., Matrices],
    gradients_follow: Callable[..., set[str]],
) -> None:
    ranks.check_unchanged("tp")
    name = f"tp-{when}"
    column, row, head = (ranks.placed(name, layer) for layer in ("block.0", "block.2", "head"))
    for rank, piece in ((0, "1/2"), (1, "2/2")):
        assert column[rank, "x"] == ([2, 4, 6], "replicate", None, 0)
        assert column[rank, "w"] == ([4, 6], "shard(0)", piece, rank)
        assert column[rank, "dy"] == ([2, 4, 4], "shard(2)", piece, rank)
        assert row[rank, "x"] == ([2, 4, 4], "shard(2)", piece, rank)
        assert row[rank, "w"] == ([6, 4], "shard(1)", piece, rank)
        assert row[rank, "dy"] == ([2, 4, 6], "replicate", None, 0)
        assert head[rank, "w"] == ([2 - rank, 6], "shard(0)", piece, rank), "three rows over two ranks"
        y = ranks.run(name).rows("tensors", layer="block.2", tensor="y", rank=rank)
        assert {r["placement"] for r in y} == {"partial"}
        got = matrices(ranks.run(name), rank)
        assert gradients_follow(got) == {"block.0", "block.2", "head"}
        np.testing.assert_allclose(
            got[2, 0, 0, "head", "y"], got[2, 0, 0, "head", "x"] @ got[2, 0, 0, "head", "w"].T, atol=1e-6
        )


@pytest.mark.captures(
    case="ranks merged offline: TP with DTensor and DDP, 2 ranks",
    how="views of a run: merged_histograms, merged_tensors, group_scales, replica_checks",
    sees="figures of the whole weight from its shards, one replica of what is replicated, one delayed scale a group",
    limits="partial sums are merged with nothing",
)
def test_merged_ranks(ranks: Ranks, matrices: Callable[..., Matrices], synthetic_run: ModuleType) -> None:
    recorded = ranks.run("tp-after")
    pieces = [matrices(recorded, rank) for rank in range(2)]
    with open_run(recorded.path) as run:
        for layer, axis in (("block.0", 0), ("block.2", 1), ("head", 0)):
            amaxes = []
            for step in range(3):
                whole = np.concatenate([piece[step, 0, 0, layer, "w"] for piece in pieces], axis=axis)
                amaxes.append(np.abs(whole).max())
                values, counts = np.unique(synthetic_run.as_bfloat16(whole), return_counts=True)
                merged = run.sql(
                    "select value, count from merged_histograms where layer = $layer and tensor = 'w' and step = $step "
                    "order by value",
                    layer=layer, step=step,
                ).fetchall()  # fmt: skip
                assert merged == list(zip(values, counts, strict=True))
            shared = run.sql(
                "select amax, amax_used from group_scales where layer = $layer and tensor = 'w' order by step",
                layer=layer,
            ).fetchall()  # fmt: skip
            assert [amax for amax, _ in shared] == amaxes
            assert [used for _, used in shared] == [None, amaxes[0], max(amaxes[:2])]
        named = run.sql("select distinct layer from merged_tensors where tensor = 'y' order by layer").fetchall()
        assert named == [("block.0",), ("head",)]
        assert run.sql("from replica_checks where not agree").fetchall() == []
    with open_run(ranks.run("ddp-after").path) as run:
        (checked, agree) = run.sql("select count(*), bool_and(agree) from replica_checks").fetchall()[0]
        assert (checked, agree) == (9, True)
        facts = rank_facts(run)
        assert facts is not None
        assert facts.caveats == ()
        assert (facts.n_ranks, facts.n_replicated) == (2, 3)


@ATTACHED
@pytest.mark.captures(
    case="HSDP, and FSDP2 over TP: 4 ranks in two dimensions",
    how="hooks on modules",
    sees="one placement a mesh dimension: w replicate,replicate under HSDP, replicate,shard(0) under FSDP2 over TP",
    limits="",
)
def test_grids(
    when: str,
    ranks: Ranks,
    matrices: Callable[..., Matrices],
    gradients_follow: Callable[..., set[str]],
) -> None:
    for name in ("hsdp", "tp x fsdp"):
        ranks.check_unchanged(name)
    hybrid, grid = ranks.placed(f"hsdp-{when}", "head"), ranks.placed(f"tp x fsdp-{when}", "block.0")
    for rank in range(4):
        assert hybrid[rank, "w"] == ([3, 6], "replicate,replicate", None, 0)
        assert hybrid[rank, "x"] == ([2, 4, 6], "local", None, rank)
        # Ranks 0 and 1, and 2 and 3, share the tokens; 0 and 2, and 1 and 3, hold the same half of the weight.
        assert grid[rank, "w"] == ([4, 6], "replicate,shard(0)", f"{rank % 2 + 1}/2", rank % 2)
        assert grid[rank, "x"] == ([2, 4, 6], "replicate", None, rank // 2 * 2)
        for name in ("hsdp", "tp x fsdp"):
            assert len(gradients_follow(matrices(ranks.run(f"{name}-{when}"), rank))) == 3


@pytest.mark.captures(
    case="one rank slower or missing",
    how="hooks on modules; ranks never speak to each other",
    sees="what the ranks that record see; nobody waits for a rank that records nothing",
    limits="",
)
def test_a_rank_that_records_nothing_and_takes_its_time(ranks: Ranks) -> None:
    alone, bare = ranks.facts("one rank"), [found["bare"] for found in ranks.facts("ddp")]
    assert alone == bare
    run = ranks.run("one rank")
    assert {row["rank"] for row in run.rows("tensors")} == {0}
    assert len(run.rows("steps")) == 3
