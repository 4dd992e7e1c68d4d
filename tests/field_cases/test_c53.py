"""C53: ranks that log different keys deadlock where logging is a collective; here rank 1 has no tokens for expert 3."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from fp8debug.rundir import RunDir

TRAIN = """
import sys
import torch
import torch.distributed as dist
from torch import nn

class Experts(nn.Module):
    def __init__(self, skips_empty):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.skips_empty = skips_empty

    def forward(self, x, chosen):
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero()[:, 0]
            if len(rows) or not self.skips_empty:
                y = y.index_add(0, rows, expert(x[rows]))
        return y

rank = int(sys.argv[1])
dist.init_process_group("gloo", rank=rank, world_size=2, init_method=f"file://{sys.argv[2]}")
torch.manual_seed(0)
model = nn.ModuleDict({"empty": Experts(False), "skipped": Experts(True)})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
chosen = torch.arange(12) % (4 if rank == 0 else 3)
for step in range(2):
    x = torch.randn(12, 4)
    loss = sum(layer(x, chosen).square().sum() for layer in model.values())
    loss.backward()
    for p in model.parameters():  # what every trainer does, and what a collective in a hook would get in the way of
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        dist.all_reduce(p.grad)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


def rows(run: Path, table: str, layer: str, rank: int) -> list[dict[str, Any]]:
    found = [row for part in RunDir(run).parts(table) for row in pq.read_table(part).to_pylist()]
    return [row for row in found if row["layer"] == layer and row["rank"] == rank]


@pytest.mark.captures(
    case="padding rows, empty experts, zero tokens",
    how="2 ranks, one of them without tokens for an expert",
    sees="an expert that is called with 0 rows, as n = 0, amax NULL and status no_tokens",
    limits="an expert that is not called on a rank is an event of that rank: never_fired",
)
def test_both_ranks_finish_and_each_says_what_it_did_not_see(tmp_path: Path, warm_python: Any) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    run, started = tmp_path / "run", time.monotonic()
    command = ["-m", "fp8debug", "attach", "--every", "1", "--out", str(run), "train.py"]
    ranks = [
        warm_python.start(tmp_path, *command, str(rank), str(tmp_path / "store"))
        for rank in (1, 0)  # their rank is known to the process group alone
    ]
    ended = [rank.wait() for rank in ranks]
    said = [done.stderr for done in ended]
    assert [done.returncode for done in ended] == [0, 0], said
    assert time.monotonic() - started < 90
    for kind in ("empty", "skipped"):
        for number in range(4):
            expected = {(step, tensor): 12 // 4 for step in (0, 1) for tensor in ("x", "dy")}
            there = rows(run, "tensors", f"{kind}.experts.{number}", 0)
            assert {(r["step"], r["tensor"]): r["shape"][0] for r in there if r["tensor"] != "w"} == expected
    empty = rows(run, "tensors", "empty.experts.3", 1)
    of_tokens = [row for row in empty if row["tensor"] == "x"]
    assert [(r["step"], r["shape"], r["n"], r["amax"], r["status"]) for r in of_tokens] == [
        (step, [0, 4], 0, None, "no_tokens") for step in (0, 1)
    ]
    assert {row["amax"] is None for row in empty if row["tensor"] == "w"} == {False}, "the weight is there all the same"
    assert rows(run, "tensors", "skipped.experts.3", 1) == []
    # DDP gives it the other rank's gradient: it was trained, but not seen, which is said of the first step too.
    told = [event["kind"] for event in rows(run, "events", "skipped.experts.3", 1)]
    assert sorted(told) == ["history_absent", "never_fired"]
    assert rows(run, "events", "skipped.experts.3", 0) == []
    assert "fp8debug: rank 1: warning: 1 matched layer never ran: skipped.experts.3" in said[0]
    assert [(info.rank, info.world_size, info.status) for info in RunDir(run).read_ranks()] == [
        (0, 2, "closed"),
        (1, 2, "closed"),
    ]
