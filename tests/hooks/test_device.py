"""A whole capture of tensors that pass for those of an accelerator: it has the rows of the host, and no hook waits."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fp8debug.formats import E4M3
from fp8debug.hooks import taking
from fp8debug.hooks.dropping import Dropping
from fp8debug.hooks.measure.device import Arriving, DeviceCounter, Reading
from fp8debug.hooks.measure.device.torch_kernels import TorchKernels
from fp8debug.hooks.measure.loading import load_engine
from fp8debug.hooks.observed import Observed, Payload
from fp8debug.hooks.recorder import Recorder
from fp8debug.recipes import parse_recipe
from fp8debug.replay import Moment
from fp8debug.schema import TABLES

if TYPE_CHECKING:
    from pathlib import Path

    from tests.hooks.conftest import Attach, Recorded

RECIPES = ("delayed:amax_history_len=4", "current", "mxfp8")


class Net(nn.Module):
    """A checkpointed layer, a tied call, a layer outside autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice, self.head = nn.Linear(24, 24), nn.Linear(24, 24), nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            h: Tensor = checkpoint(self.first, x, use_reentrant=False)
            h = self.twice(torch.relu(self.twice(h)))
        y: Tensor = self.head(h.float())
        return y


@pytest.fixture
def on_a_device(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every tensor passes for one of an accelerator from now on; the names of the threads that wait for a reading."""
    waited: list[str] = []
    reading = Arriving.reading

    def noted(self: Arriving) -> Reading:
        waited.append(threading.current_thread().name)
        return reading(self)

    monkeypatch.setattr(taking, "is_on_accelerator", lambda t: True)
    monkeypatch.setattr(taking, "DeviceCounter", lambda note: DeviceCounter(TorchKernels(), note))
    monkeypatch.setattr(Arriving, "reading", noted)
    return waited


def record(attach: Attach, folder: Path, **options: Any) -> None:
    """Train four steps of two micro-batches; a NaN comes in the third."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attach(model, run_dir=folder, recipes=RECIPES, engine="numba", **options) as session:
        for step in range(4):
            for _ in range(2):
                x = torch.randn(5, 24)
                if step == 2:
                    x[3, 1] = math.nan
                model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            session.flush()  # while some of it is on its way


def untimed(row: dict[str, Any]) -> dict[str, Any]:
    """A row without the times in it."""
    return {name: cell for name, cell in row.items() if not name.endswith(("unix_s", "duration_s"))}


def contents(run: Recorded) -> dict[str, list[str]]:
    """Everything that was written, but for times, in an order that does not depend on when."""
    found = {}
    for table in TABLES:
        found[table] = sorted(repr(untimed(row)) for row in run.rows(table))
    return found


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"detail": "none", "every": 2}, id="plain"),
        pytest.param({"every": 3}, id="details"),
        pytest.param({"detail": "none", "every": 1000, "trigger": "nan", "flight_memory": 1}, id="flight"),
    ],
)
def test_rows_are_those_of_the_host(
    attach: Attach, recorded: Recorded, tmp_path: Path, options: dict[str, Any], on_a_device: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    record(attach, tmp_path / "device", **options)
    assert on_a_device
    monkeypatch.setattr(taking, "is_on_accelerator", lambda t: False)
    record(attach, tmp_path / "host", **options)
    device, host = (contents(type(recorded)(tmp_path / name)) for name in ("device", "host"))
    assert {table for table, rows in host.items() if rows} >= {"tensors", "scales", "errors", "histograms", "events"}
    for table in TABLES:
        assert device[table] == host[table], table


def test_no_hook_waits(attach: Attach, tmp_path: Path, on_a_device: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of BF16 tensors without details; FP32 values of a sampled step are needed for their errors."""
    monkeypatch.setattr(Net, "forward", lambda self, x: self.twice(self.first(x.bfloat16())))
    monkeypatch.setattr(nn.Linear, "reset_parameters", lambda self: self.to(torch.bfloat16) and None)
    record(attach, tmp_path / "device", detail="none")
    assert set(on_a_device) == {"fp8debug-writer"}
    assert len(on_a_device) == 4 * 2 * 4 + 4 * 2


def test_what_is_dropped_has_arrived(on_a_device: list[str]) -> None:
    """Health of a batch whose details a slow disk has no room for; its histories are those of the batch after it."""
    recorder = Recorder(load_engine("numba"), [parse_recipe("delayed:amax_history_len=2")], "microbatch", 0, 0)
    batches = []
    for step, value in enumerate((2.0, 8.0)):
        x = torch.full((4, 4), value, dtype=torch.bfloat16)
        recorder.record(Observed("fc", "x", x, torch.bfloat16, Moment(step, 0, 0, "forward")), sampled=True, raw=False)
        batches.append(recorder.take_batch(wait=False))
    assert not on_a_device
    dropping = Dropping(recorder.event_row, lambda line: None)
    assert min(batch.n_bytes for batch in batches) > 0
    second, first = batches[1].to_arrow(), dropping.drop_detail(batches[0]).to_arrow()
    assert [table["tensors"]["amax"].to_pylist() for table in (first, second)] == [[2.0], [8.0]]
    assert (sorted(first), first["tensors"]["sampled"].to_pylist()) == (["scales", "tensors"], [False])
    assert second["scales"]["scale"].to_pylist() == [448 / 2]


def test_payloads_and_rows_by_class(on_a_device: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes are counted where they are too; of rows by class, which need the values, everything is waited for."""
    found = []
    for device in (True, False):
        monkeypatch.setattr(taking, "is_on_accelerator", lambda t, device=device: device)
        recorder = Recorder(load_engine("numba"), [parse_recipe("current")], "microbatch", 0, 0)
        x = torch.randn(6, 32, generator=torch.Generator().manual_seed(0)).bfloat16()
        codes = x.float().to(torch.float8_e4m3fn)
        codes[4, 0] = math.nan
        for step in range(3):
            moment = Moment(step, 0, 0, "forward")
            if step == 2:
                recorder.masks.give(torch.tensor([True, True, False, True, True, False]))
            payload = Payload(codes if step else codes.view(torch.uint8), E4M3, 0.5, "current")
            seen = Observed("fc", "x", x, torch.bfloat16, moment, payload=payload)
            recorder.record(seen, sampled=step != 1, raw=False)
        assert not device or len(on_a_device) == 1, "the one with a mask"
        tables = recorder.take_batch(wait=False).to_arrow()
        assert len(on_a_device) == 6
        found.append({name: [untimed(row) for row in table.to_pylist()] for name, table in tables.items()})
    assert {row["row_class"] for row in found[1]["tensors"]} == {"all", "valid", "padding"}
    assert repr(found[0]) == repr(found[1])
