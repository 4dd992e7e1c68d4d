"""Whatever breaks in here, the training goes on as if we had never been there, and the record says what happened."""

from __future__ import annotations

import errno
import io
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import optimizer as torch_optimizer

from fp8debug.hooks import encoding, flushing, observation, writer
from fp8debug.hooks.clock import Clock
from fp8debug.hooks.measure.counting.torch_ops import TorchEngine
from fp8debug.hooks.rows import RowMaker
from fp8debug.hooks.session import Session
from fp8debug.hooks.tables import Batch
from fp8debug.hooks.training import TrainingWatch

if TYPE_CHECKING:
    from tests.hooks.conftest import Attach, Recorded

N_STEPS = 4


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))


def train(
    net: nn.Module, session: AbstractContextManager[object], then: Callable[[int], None] = lambda step: None
) -> Any:
    """Losses and final weights; `then` is called after each step."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    with session:
        for step in range(N_STEPS):
            x = torch.randn(5, 4, generator=torch.Generator().manual_seed(step))
            loss = net(x).square().mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            then(step)
    return losses, [p.tolist() for p in net.parameters()]


@pytest.fixture(scope="module")
def bare() -> Any:
    """The training without us."""
    return train(model(), nullcontext())


def breaking(original: Callable[..., Any], at_call: int) -> Callable[..., Any]:
    """`original`, but its call number `at_call` raises."""
    calls = 0

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at_call:
            raise ZeroDivisionError("a bug of ours")
        return original(*args, **kwargs)

    return wrapper


# Where it breaks, at which call (6 records a step: x, w, x, w, dy, dy), and the step that this is in.
PLACES = {
    "engine": (TorchEngine, "count", 6 * 2 + 3, 2),
    "backward": (TorchEngine, "count", 6 + 6, 1),
    "first": (TorchEngine, "count", 1, 0),
    "rows": (RowMaker, "_add_scale_rows", 6 + 1, 1),
    "clock": (Clock, "forward", 2 * 3 + 1, 2),  # the forward that would have begun step 3
    "clock in backward": (Clock, "backward", 3 * 1 + 3, 1),
    "optimizer step": (Clock, "optimizer_stepped", 2, 1),
    "end of a step": (Session, "_on_step_end", 2, 1),
    "loss": (TrainingWatch, "_note_loss", 3, 2),
    "norm": (TrainingWatch, "_note_clip", 2 * 1 + 1, 1),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_bug_of_ours_disables_us_alone(
    place: str,
    bare: Any,
    attach: Attach,
    recorded: Recorded,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    owner, name, at_call, step = PLACES[place]
    monkeypatch.setattr(owner, name, breaking(getattr(owner, name), at_call))
    net = model()
    session = attach(net, quiet=False)
    assert train(net, session) == bare
    assert not any(module._forward_hooks for module in net.modules())
    lines = [line for line in capsys.readouterr().err.splitlines() if "disabled" in line]
    assert len(lines) == 1
    assert lines[0].startswith(
        f"fp8debug: disabled at step {step}, the training goes on (ZeroDivisionError: a bug of ours at "
    )
    event = recorded.row("events")
    assert (event["kind"], event["step"], event["layer"]) == ("disabled", step, None)
    assert event["message"].startswith("ZeroDivisionError: a bug of ours")
    manifest = recorded.manifest
    assert manifest["status"] == "disabled"
    assert manifest["status_reason"] == event["message"]
    assert manifest["closed_at"]
    assert session.close().problems == [f"disabled at step {step}: {event['message']}"]
    assert {row["step"] for row in recorded.rows("steps")} <= set(range(step)), "of the broken step there is none"
    assert len(recorded.keys()) >= 6 * step, "what was seen before is kept"


@pytest.mark.parametrize("name", ["_note_gradients", "_note_optimizer"])
def test_a_bug_of_ours_among_the_hooks_of_optimizers(
    name: str, bare: Any, attach: Attach, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch goes through a dictionary of hooks, which must not change meanwhile: others have hooks there too."""
    monkeypatch.setattr(TrainingWatch, name, breaking(getattr(TrainingWatch, name), 2))
    net = model()
    session = attach(net)
    hooks = (torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks)
    n_ours = [len(held) for held in hooks]
    theirs = [
        torch_optimizer.register_optimizer_step_pre_hook(lambda *_: None),
        torch_optimizer.register_optimizer_step_post_hook(lambda *_: None),
    ]
    assert train(net, session) == bare
    assert not session.active
    for handle in theirs:
        handle.remove()
    assert all(n_ours) and not any(len(hook) for hook in hooks), "closed: nothing of ours is left"


def test_a_closed_stderr_costs_the_training_nothing(
    bare: Any, attach: Attach, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TorchEngine, "count", breaking(TorchEngine.count, 2))
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    net = model()
    assert train(net, attach(net, quiet=False)) == bare
    assert recorded.manifest["status"] == "disabled"


@pytest.fixture
def flush_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flushing, "flush_interval_s", lambda elapsed_s: -1.0)


def wait_for_first_parts(run: Recorded) -> None:
    """Until the writer has written its first batch, of which the histograms come last."""
    deadline = time.monotonic() + 20
    while not run.parts("histograms"):
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.usefixtures("flush_every_step")
@pytest.mark.parametrize("fault", ["full disk", "table gone", "run gone"])
def test_a_disk_that_fails_disables_us_alone(
    fault: str,
    bare: Any,
    attach: Attach,
    recorded: Recorded,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")

    def no_space(table: Any, name: str, *where: Any) -> None:
        if name != "events":
            raise full
        original(table, name, *where)

    original = encoding.write_part

    def fail(step: int) -> None:
        if step == 1:
            wait_for_first_parts(recorded)
            if fault == "full disk":
                monkeypatch.setattr(writer, "write_part", no_space)
            else:
                shutil.rmtree(recorded.path / ("tensors" if fault == "table gone" else ""))

    net = model()
    session = attach(net, quiet=False)
    assert train(net, session, fail) == bare
    lines = [line for line in capsys.readouterr().err.splitlines() if "disabled" in line]
    assert len(lines) == 1
    assert ("No space left" if fault == "full disk" else "No such file") in lines[0]
    assert not session.active
    assert not any(module._forward_hooks for module in net.modules())
    assert len(session.close().problems) == 1
    if fault == "run gone":
        assert not recorded.path.exists(), "nothing is made again behind somebody's back"
        return
    assert recorded.manifest["status"] == "disabled"
    assert recorded.row("events")["kind"] == "disabled"
    if fault == "full disk":
        assert [row["step"] for row in recorded.rows("steps")] == [0]
        assert not list(recorded.path.rglob("*.tmp*")), "half-written files are taken away"


def test_a_disk_that_fails_at_the_very_end(
    bare: Any, attach: Attach, recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    (recorded.path).mkdir()
    net = model()
    session = attach(net, quiet=False)

    def block(step: int) -> None:
        if step == N_STEPS - 1:
            (recorded.path / "steps").write_text("a file in the way")

    assert train(net, session, block) == bare
    assert capsys.readouterr().err.count("disabled at step") == 1
    assert recorded.manifest["status"] == "disabled"
    assert "FileExistsError" in recorded.row("events")["message"]


class Quantized(nn.Linear):
    """A weight stored as integers, as quantized layers have it."""

    def __init__(self) -> None:
        super().__init__(4, 4, bias=False)
        self.weight = nn.Parameter(torch.randint(-4, 4, (4, 4), dtype=torch.int8), requires_grad=False)

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight.float())


def test_dtypes_that_cannot_be_measured_are_said_and_the_rest_goes_on(attach: Attach, recorded: Recorded) -> None:
    net = nn.ModuleDict({"odd": nn.Linear(3, 3, dtype=torch.complex64), "whole": Quantized(), "plain": nn.Linear(4, 2)})
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with attach(net):
        for _ in range(2):
            loss = net["odd"](torch.randn(2, 3, dtype=torch.complex64)).abs().sum()
            loss = loss + net["plain"](net["whole"](torch.randn(2, 4))).sum()
            loss.backward()
            optimizer.step()
    assert recorded.manifest["status"] == "closed"
    rows = recorded.rows("tensors")
    bad = {(r["layer"], r["tensor"]): r for r in rows if r["status"] != "ok"}
    assert set(bad) == {("odd", "x"), ("odd", "w"), ("odd", "dy"), ("whole", "w")}
    assert all("unsupported dtype" in r["status"] and r["n"] is r["amax"] is r["n_nan"] is None for r in bad.values())
    assert (bad["odd", "x"]["dtype"], bad["whole", "w"]["dtype"]) == ("complex64", "int8")
    assert (bad["odd", "x"]["shape"], bad["odd", "x"]["sampled"]) == ([2, 3], False)
    assert len([r for r in rows if r["status"] == "ok"]) == 2 * len(["whole x", "plain x", "plain w", "plain dy"])
    events = recorded.rows("events")
    assert {(e["kind"], e["layer"], e["tensor"], e["step"]) for e in events} == {
        ("unsupported", *key, 0) for key in bad
    }
    assert len(events) == len(bad), "each is said once"
    assert not {r["seq"] for r in recorded.rows("scales")} & {r["seq"] for r in bad.values()}


class Gated(nn.Linear):
    """Takes a pair: no single operand to measure."""

    def forward(self, input: Any) -> Tensor:
        x, gate = input
        return F.linear(x * gate, self.weight)


def test_a_layer_that_takes_no_tensor_is_left_out_and_the_rest_goes_on(attach: Attach, recorded: Recorded) -> None:
    net = nn.ModuleDict({"gated": Gated(4, 4, bias=False), "plain": nn.Linear(4, 2)})
    with attach(net):
        for _ in range(2):
            net["plain"](net["gated"]((torch.randn(2, 4), torch.rand(4)))).sum().backward()
    assert recorded.manifest["status"] == "closed"
    assert {r["layer"] for r in recorded.rows("tensors")} == {"plain"}
    said = recorded.row("events", layer="gated")
    assert (said["kind"], said["tensor"]) == ("unsupported", None)
    assert "takes tuple" in said["message"]


def test_nested_tensors_are_left_out_and_said(attach: Attach, recorded: Recorded) -> None:
    net = nn.ModuleDict({"ragged": nn.Linear(4, 4), "plain": nn.Linear(4, 2)})
    with attach(net) as session:
        rows = torch.nested.nested_tensor([torch.randn(n, 4) for n in (2, 3)], layout=torch.jagged)
        net["plain"](net["ragged"](rows).values()).sum().backward()
    assert {row["layer"] for row in recorded.rows("tensors")} == {"plain"}
    event = recorded.row("events")
    assert (event["kind"], event["layer"], event["tensor"]) == ("unsupported", "ragged", None)
    assert event["message"].startswith("takes a nested tensor")
    assert session.close().problems == [f"ragged: {event['message']}"]


def test_a_layer_that_never_ran_and_one_that_was_not_asked_for(attach: Attach, recorded: Recorded) -> None:
    net = nn.ModuleDict({name: nn.Linear(2, 2) for name in ("used", "unused", "left_out")})
    with attach(net, exclude="left") as session:
        net["used"](torch.ones(1, 2))
        net["left_out"](torch.ones(1, 2))
    event = recorded.row("events")
    assert (event["kind"], event["layer"]) == ("never_fired", "unused")
    assert session.close().problems == ["1 matched layer never ran: unused"]
    assert {row["layer"] for row in recorded.rows("tensors")} == {"used"}
    assert {x["name"]: x["matched"] for x in recorded.manifest["layers"]} == {
        "used": True,
        "unused": True,
        "left_out": False,
    }


def test_the_output_layer_of_attention_is_explained(attach: Attach, recorded: Recorded) -> None:
    net = nn.TransformerEncoderLayer(4, 1, 4, batch_first=True)
    with attach(net, backend="modules") as session:
        net(torch.randn(1, 2, 4)).sum().backward()
    why = "nn.MultiheadAttention reads its weight without calling it"
    assert session.close().problems == [f"1 matched layer never ran: self_attn.out_proj ({why})"]
    assert recorded.row("events")["message"] == f"matched, but {why}"


def test_memory_is_bounded_by_bytes(attach: Attach, recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raw rows count with their values, also in steps that are not sampled."""
    limit = 1 << 20
    monkeypatch.setattr(observation, "MAX_BUFFERED_BYTES", limit)
    submitted: list[int] = []
    original = writer.PartWriter.submit

    def submit(self: Any, batch: Batch) -> None:
        rows: list[npt.NDArray[np.float32]] = [row[-1] for row in batch.rows["values"]._rows]  # type: ignore[index]
        submitted.append(sum(row.nbytes for row in rows))
        original(self, batch)

    monkeypatch.setattr(writer.PartWriter, "submit", submit)
    net = nn.Linear(2000, 8)
    one = 100 * 2000 * 4
    with attach(net, tensors=["x"], raw_every=1, steps="1000-"):
        for _ in range(5):
            net(torch.ones(100, 2000))
    assert len(recorded.rows("values")) == 500
    assert max(submitted) <= limit + one
    assert len(submitted) >= 3
