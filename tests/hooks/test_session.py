"""`fp8debug.attach` as its user sees it: what is logged, steps by hand, how it ends, what the manifest says."""

from __future__ import annotations

import math
import platform
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import fp8debug
from fp8debug.errors import UsageError
from fp8debug.hooks.training import gradient_squares
from fp8debug.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from tests.hooks.conftest import Attach, Recorded

SOURCES = ("loss", "loss_source", "grad_norm", "grad_norm_source", "lr", "tokens")


def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(3, 3))
    return model, torch.optim.SGD(model.parameters(), lr=0.25)


def test_what_is_logged_wins(attach: Attach, recorded: Recorded) -> None:
    """Numbers, tensors, some of them; between the step and the next forward; the last call counts."""
    model, optimizer = model_and_optimizer()
    norms: list[float] = []
    with attach(model) as session:
        for step in range(4):
            loss = model(torch.ones(2, 3)).square().mean()
            loss.backward()
            norms.append(
                math.hypot(
                    *(value for p in model.parameters() if p.grad is not None for value in p.grad.flatten().tolist())
                )
            )
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()
            optimizer.zero_grad()
            if step == 1:
                session.log(loss=9.0, tokens=1)
                session.log(loss=torch.tensor(2.5, requires_grad=True), grad_norm=torch.tensor([0.5]), tokens=4096)
            if step == 2:
                session.log(lr=1e-3)
    rows = recorded.rows("steps")
    assert [rows[1][name] for name in SOURCES] == [2.5, "log", 0.5, "log", 0.25, 4096]
    assert rows[1]["losses"] != [2.5], "what backward was called on is kept beside it"
    for row, lr in ((rows[0], 0.25), (rows[2], 1e-3), (rows[3], 0.25)):
        assert (row["loss_source"], row["grad_norm_source"], row["tokens"]) == ("backward", "clip_grad_norm_", None)
        assert row["lr"] == lr
        assert row["grad_norm"] == pytest.approx(norms[row["step"]], rel=1e-6), "before clipping, and once"
    assert rows[0]["loss"] == rows[0]["losses"][0]


def test_steps_by_hand(attach: Attach, recorded: Recorded) -> None:
    """From the first `step()` on nothing else ends a step, however often optimizers step."""
    model, optimizer = model_and_optimizer()
    with attach(model) as session:
        for iteration in range(4):
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            if iteration % 2:
                session.step()
    x = [key for key in recorded.keys() if key.endswith(".x")]  # noqa: SIM118
    # The first two iterations come before the first call: the optimizer ends their first step.
    assert x == [f"{where} forward 0.x" for where in ("0/0/0", "1/0/0", "2/0/0", "2/1/0")]
    assert [row["n_microbatches"] for row in recorded.rows("steps")] == [1, 1, 2]


def test_squares_of_all_kinds_of_gradients() -> None:
    gradients = [
        torch.tensor([3 + 4j, 1j]),
        torch.tensor([1.0 - 2.0j]).conj(),
        torch.tensor([[2.0, 0.5]], dtype=torch.bfloat16),
        torch.zeros(0),
    ]
    assert gradient_squares(gradients).tolist() == pytest.approx([25 + 1, 5, 4 + 0.25, 0], rel=1e-6)
    elsewhere = gradient_squares([torch.ones(2), torch.ones(2, device="meta")])
    assert elsewhere.device.type == "meta", "the host's part goes to the others, and nobody waits for them"


def test_multiple_backwards_of_one_forward_are_one_microbatch(attach: Attach, recorded: Recorded) -> None:
    model, optimizer = model_and_optimizer()
    with attach(model):
        y = model(torch.ones(1, 3))
        y.sum().backward(retain_graph=True)
        y.square().sum().backward()
        optimizer.step()
    row = recorded.row("steps")
    assert (row["n_microbatches"], len(row["losses"])) == (1, 2)
    assert [key.split()[0] for key in recorded.keys()] == ["0/0/0"] * 4  # noqa: SIM118


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (None, "closed", None),
        (ValueError("no data"), "failed", "ValueError: no data"),
        (KeyboardInterrupt(), "interrupted", "KeyboardInterrupt: "),
        (SystemExit(0), "closed", None),
        (SystemExit(3), "failed", "SystemExit: 3"),
    ],
)
def test_how_a_with_block_ends(
    error: BaseException | None, status: str, reason: str | None, attach: Attach, recorded: Recorded
) -> None:
    model, _ = model_and_optimizer()

    def use() -> None:
        with attach(model):
            model(torch.ones(1, 3)).sum().backward()
            if error is not None:
                raise error

    if error is None:
        use()
    else:
        with pytest.raises(type(error)):
            use()
    manifest = recorded.manifest
    assert (manifest["status"], manifest["status_reason"]) == (status, reason)
    assert manifest["closed_at"] >= manifest["created_at"]
    assert len(recorded.keys()) == 3


def test_closing_twice_and_using_it_afterwards(attach: Attach, recorded: Recorded) -> None:
    model, _ = model_and_optimizer()
    session = attach(model)
    assert recorded.manifest["status"] == "running"
    model(torch.ones(1, 3))
    first = session.close()
    assert session.close("failed", "late") is first
    session.step()
    session.log(loss=1.0)
    session.flush()
    model(torch.ones(1, 3))
    assert recorded.manifest["status"] == "closed"
    assert len(recorded.keys()) == 2


def test_manifest(attach: Attach, recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/home/me/train.py", "--lr", "1"])
    model, _ = model_and_optimizer()
    session = attach(model, name="mine", recipes=["delayed:margin=1", "current"], tensors="x, dy", every=7)
    session.close()
    manifest = recorded.manifest
    assert manifest["schema_version"] == SCHEMA_VERSION
    assert (manifest["run_id"], manifest["name"], manifest["command"]) == ("run", "mine", ["train.py", "--lr", "1"])
    assert (manifest["recipes"], manifest["tensors"]) == (["delayed:margin=1", "current"], ["x", "dy"])
    assert (manifest["options"]["every"], manifest["options"]["engine"], manifest["world_size"]) == (7, "torch", 1)
    assert manifest["versions"]["python"] == platform.python_version()
    assert manifest["versions"]["torch"] == torch.__version__
    names = {"name": "0", "raw_name": "0", "class_name": "Linear", "root": "Sequential", "emulated": None}
    reached = {"backend": "modules", "kind": "Linear"}
    assert manifest["layers"] == [{**names, **reached, "in_features": 3, "out_features": 3, "matched": True}]


def test_nothing_is_said_on_stdout_and_nothing_at_all_when_quiet(
    attach: Attach, capsys: pytest.CaptureFixture[str]
) -> None:
    model, _ = model_and_optimizer()
    attach(model, quiet=False).close()
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 2
    attach(model, force=True, quiet=True).close()
    assert capsys.readouterr() == ("", "")


def test_only_modules_can_be_attached() -> None:
    function: Any = torch.relu
    with pytest.raises(UsageError, match=r"attach: got builtin_function_or_method; expected an nn\.Module"):
        fp8debug.attach(function)
