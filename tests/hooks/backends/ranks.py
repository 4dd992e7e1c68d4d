"""Small distributed trainings in real processes on gloo, each with and without capture; run as a script.

    python ranks.py FOLDER

The parent has imported everything and forks the ranks: two seconds spared a rank. What each rank found is written to
`FOLDER/<group>-<rank>.json`, what was captured to `FOLDER/<training>`.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import fp8debug

ALL = ("x", "w", "dy", "y", "dx", "dw")
Wrap = Callable[[nn.Module], nn.Module]


class Net(nn.Module):
    """6 -> 8 -> 6 -> 3, on three dimensions; three rows of `head` are one short of two equal shards."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6))
        self.head = nn.Linear(6, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(x + self.block(x))
        return y


def ddp(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model)


def sharded(model: Any, mesh: DeviceMesh, policy: MixedPrecisionPolicy | None = None) -> nn.Module:
    """Children below a sharded block, and a Linear that is sharded itself."""
    policy = policy or MixedPrecisionPolicy()
    for part in (model.block, model.head, model):
        fully_shard(part, mesh=mesh, mp_policy=policy)
    return model  # type: ignore[no-any-return]


def tensor_parallel(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    plan = {"block.0": ColwiseParallel(), "block.2": RowwiseParallel(), "head": ColwiseParallel()}
    return parallelize_module(model, mesh, plan)


def n_collectives() -> int:
    """Collectives that this rank has issued so far in any group, as the groups themselves count them."""
    groups: Iterable[Any] = distributed.distributed_c10d._world.pg_map
    return sum(group._get_sequence_number_for_group() for group in groups)


def digest(model: nn.Module) -> str:
    """Of the parameters that this rank holds."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        held = parameter.detach()
        local = held.to_local() if hasattr(held, "to_local") else held
        found.update(local.contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def train(
    wrap: Wrap, *, record: Path | None = None, before: bool = False, by_rank: bool = True, wait_s: float = 0.0
) -> dict[str, Any]:
    """Three steps of Adam; the losses, the weights that come of them, and the collectives that it took.

    Args:
        before: attach before wrapping.
        by_rank: whether each rank has data of its own.
    """
    torch.manual_seed(7)
    model: nn.Module = Net()
    options: dict[str, Any] = {"tensors": ALL, "raw_every": 1, "every": 1, "engine": "torch", "quiet": True}
    session = fp8debug.attach(model, run_dir=record, **options) if record is not None and before else None
    inner, model = model, wrap(model)
    if record is not None and not before:
        session = fp8debug.attach(inner, run_dir=record, **options)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    data = torch.Generator().manual_seed(distributed.get_rank() if by_rank else 0)
    losses = []
    before_training = n_collectives()
    for _ in range(3):
        loss = model(torch.randn(2, 4, 6, generator=data)).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        time.sleep(wait_s)
    facts = {"losses": losses, "weights": digest(model), "collectives": n_collectives() - before_training}
    if session is not None:
        session.close()
    return facts


def compare(folder: Path, wraps: dict[str, Wrap], **options: Any) -> dict[str, Any]:
    """Each training bare, captured from before it was wrapped, and from after."""
    found = {}
    for name, wrap in wraps.items():
        found[name] = {
            "bare": train(wrap, **options),
            "before": train(wrap, record=folder / f"{name}-before", before=True, **options),
            "after": train(wrap, record=folder / f"{name}-after", **options),
        }
    return found


def on_two(folder: Path) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (2,))
    bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    found = compare(
        folder, {"ddp": ddp, "fsdp": partial(sharded, mesh=mesh), "fsdp-bf16": partial(sharded, mesh=mesh, policy=bf16)}
    )
    found |= compare(folder, {"tp": partial(tensor_parallel, mesh=mesh)}, by_rank=False)
    found["one rank"] = uneven_ranks(folder)
    return found


def uneven_ranks(folder: Path) -> dict[str, Any]:
    """One rank records, the other does not and takes its time."""
    first = distributed.get_rank() == 0
    return train(ddp, record=folder / "one rank" if first else None, wait_s=0.0 if first else 0.3)


def on_four(folder: Path) -> dict[str, Any]:
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))

    def both(model: nn.Module) -> nn.Module:
        return sharded(tensor_parallel(model, grid["tp"]), grid["dp"])

    return compare(folder, {"hsdp": partial(sharded, mesh=grid)}) | compare(folder, {"tp x fsdp": both}, by_rank=False)


def run_rank(group: Callable[[Path], dict[str, Any]], rank: int, world: int, folder: Path) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)
    store = f"file://{folder / group.__name__}-store"
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    (folder / f"{group.__name__}-{rank}.json").write_text(json.dumps(group(folder)))
    distributed.barrier()
    distributed.destroy_process_group()


def main(folder: Path) -> int:
    failed = 0
    for group, world in ((on_two, 2), (on_four, 4)):
        children = []
        for rank in range(world):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    run_rank(group, rank, world, folder)
                    status = 0
                except BaseException:
                    sys.excepthook(*sys.exc_info())
                finally:
                    sys.stderr.flush()
                    os._exit(status)
            children.append(child)
        failed += sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children)
    return failed


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
