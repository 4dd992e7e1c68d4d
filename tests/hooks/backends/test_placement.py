"""Which part of a tensor a rank holds: any rank of any mesh, in one process that only believes it has peers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from fp8debug.hooks.backends.placement import megatron_placements, placement_of
from fp8debug.hooks.observed import LOCAL, Placement

if TYPE_CHECKING:
    from tests.hooks.conftest import Attach, Recorded

Become = Callable[[int, int], None]


@pytest.fixture
def become() -> Iterator[Become]:
    """Be one rank of a world of which nothing else exists."""

    def join(rank: int, world: int) -> None:
        distributed.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())

    yield join
    distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("rank", "placements", "expected"),
    [
        (5, (Replicate(), Replicate()), Placement("replicate,replicate", None, 0)),
        (5, (Replicate(), Shard(0)), Placement("replicate,shard(0)", "2/4", 1)),
        (5, (Shard(-1), Replicate()), Placement("shard(1),replicate", "2/2", 4)),
        (6, (Shard(0), Shard(0)), Placement("shard(0),shard(0)", "7/8", 6)),
        (6, (Partial(), Shard(1)), Placement("partial,shard(1)", "3/4", 6)),
        (3, (Replicate(), Partial("max")), Placement("replicate,partial", None, 3)),
    ],
)
def test_dtensors_on_two_dimensions(rank: int, placements: Any, expected: Placement, become: Become) -> None:
    """Rows 0 1 2 3 and 4 5 6 7."""
    become(rank, 8)
    mesh = init_device_mesh("cpu", (2, 4))
    local = torch.arange(6.0).reshape(2, 3)
    held, placement = placement_of(DTensor.from_local(local, mesh, placements, run_check=False))
    assert placement == expected
    assert type(held) is torch.Tensor
    assert torch.equal(held, local)


def test_plain_tensors_and_those_on_their_way() -> None:
    plain = torch.ones(2)
    assert placement_of(plain) == (plain, LOCAL)
    assert placement_of(nn.Parameter(plain), Placement("replicate"))[1].text == "replicate"
    held, placement = placement_of(AsyncCollectiveTensor(plain))
    assert held is plain or torch.equal(held, plain)
    assert type(held) is torch.Tensor
    assert placement is LOCAL


@pytest.mark.captures(
    case="FSDP2 shards that are seen outside the forward, uneven and empty shards",
    how="hooks on modules",
    sees="what this rank holds, with its piece, such as 1/2; shapes are those of the rank",
    limits="an empty shard has the status empty_shard, and neither sums nor extremes",
)
@pytest.mark.parametrize(
    ("rows", "shape", "status"), [(8, [4, 8], "ok"), (3, [1, 8], "ok"), (1, [0, 8], "empty_shard")]
)
def test_a_weight_that_is_a_shard(
    rows: int, shape: list[int], status: str, become: Become, attach: Attach, recorded: Recorded
) -> None:
    """C60: what module.weight is depends on when one looks (pytorch issue 144289). Here: the second of two ranks."""
    become(1, 2)
    mesh = init_device_mesh("cpu", (2,))
    layer = nn.Linear(8, rows, bias=False)
    full = layer.weight.detach()
    local = full.split((rows + 1) // 2)[1] if rows > 1 else full[:0]
    shard = DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=full.shape, stride=full.stride())
    layer.weight = nn.Parameter(shard)
    x = DTensor.from_local(torch.randn(5, 8), mesh, [Replicate()], run_check=False)
    with attach(layer, tensors=["x", "w", "y", "dy"], raw_every=1, engine=None):
        layer(x).to_local().sum().backward()
    assert recorded.manifest["status"] == "closed"
    seen = {row["tensor"]: row for row in recorded.rows("tensors")}
    w = seen["w"]
    assert (w["shape"], w["placement"], w["shard"], w["replica_of"]) == (shape, "shard(0)", "2/2", 1)
    assert w["status"] == status
    assert {seen[tensor]["status"] for tensor in ("x", "y", "dy")} == {"ok"}, "one row is not split: torch gathers it"
    assert seen["dy"]["shape"] == [5, shape[0] or 1]
    assert (seen["x"]["placement"], seen["x"]["replica_of"]) == ("replicate", 0)
    if shape[0]:
        assert w["amax"] == local.abs().max().item()
    else:
        assert w["n"] == 0
        assert not recorded.rows("errors", tensor="w")


class Parallel(nn.Module):
    """What Megatron's layers tell of themselves."""

    def __init__(self, **told: object) -> None:
        super().__init__()
        self.__dict__ |= told


@pytest.mark.parametrize(
    ("kind", "told", "expected"),
    [
        ("ColumnParallelLinear", {}, {"x": "replicate", "w": "shard(0)", "dy": "shard(2)"}),
        ("ColumnParallelLinear", {"gather_output": True}, {"x": "replicate", "w": "shard(0)", "dy": "replicate"}),
        ("ColumnParallelLinear", {"sequence_parallel": True}, {"x": "shard(0)", "w": "shard(0)", "dy": "shard(2)"}),
        ("RowParallelLinear", {}, {"x": "shard(2)", "w": "shard(1)", "dy": "replicate"}),
        ("RowParallelLinear", {"sequence_parallel": True}, {"x": "shard(2)", "w": "shard(1)", "dy": "shard(0)"}),
        ("RowParallelLinear", {"input_is_parallel": False}, {"x": "replicate", "w": "shard(1)", "dy": "replicate"}),
    ],
)
def test_megatron_layers(kind: str, told: dict[str, object], expected: dict[str, str], become: Become) -> None:
    become(1, 4)
    group = distributed.new_group([0, 1])
    placed = megatron_placements(Parallel(tp_group=group, **told), kind, 3)
    assert {tensor: placed[tensor].text for tensor in expected} == expected
    for placement in placed.values():
        split = placement.text != "replicate"
        assert placement[1:] == (("2/2", 1) if split else (None, 0))
    assert megatron_placements(Parallel(), kind, 3) == {}
    assert megatron_placements(Parallel(tp_group=group), "Linear", 3) == {}
