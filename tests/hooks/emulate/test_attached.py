"""Emulation together with a capture: `attach(emulate=…)` and unmodified scripts."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import fp8debug
from fp8debug.config import CaptureOptions
from fp8debug.errors import UsageError
from fp8debug.hooks.plan import CapturePlan
from fp8debug.rundir import parse_manifest

if TYPE_CHECKING:
    from tests.hooks.conftest import Attach, Recorded, Zygote


def emulated(recorded: Recorded) -> dict[str, str | None]:
    return {layer["name"]: layer["emulated"] for layer in recorded.manifest["layers"]}


def losses_of(trainings: ModuleType, name: str, recipe: str | None = None, **options: Any) -> Any:
    """Losses of the training without a capture."""
    started = []

    def start(model: nn.Module) -> None:
        if recipe is not None:
            started.append(fp8debug.emulate(model, recipe, quiet=True, **options))

    torch.manual_seed(0)
    facts = getattr(trainings, name)(start)
    for emulation in started:
        emulation.remove()
    return facts["losses"]


def test_nothing_of_torch_stays_wrapped_after_an_emulated_capture(attach: Attach) -> None:
    before = torch.amp.GradScaler.step
    session = attach(nn.Sequential(nn.Linear(8, 8)), emulate="current")
    assert torch.amp.GradScaler.step is not before
    session.close()
    assert torch.amp.GradScaler.step is before


def test_a_wrapper_of_somebody_else_is_left_where_it_is(
    attach: Attach, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = torch.amp.GradScaler.step
    session = attach(nn.Sequential(nn.Linear(8, 8)), emulate="current")
    ours = torch.amp.GradScaler.step

    @functools.wraps(ours)
    def theirs(*args: Any, **kwargs: Any) -> Any:
        return ours(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(torch.amp.GradScaler, "step", theirs)
        session.close()
        assert torch.amp.GradScaler.step is theirs
    with attach(nn.Sequential(nn.Linear(8, 8)), emulate="current", run_dir=tmp_path / "next"):
        pass
    assert torch.amp.GradScaler.step is before


def test_an_emulation_that_keeps_every_layer_is_refused(attach: Attach) -> None:
    with pytest.raises(UsageError, match="nothing is left to emulate: 1 of 1 layers"):
        attach(nn.Sequential(nn.Linear(8, 8)), emulate="current", keep_bf16=".")


def test_attach_emulates_until_the_session_is_closed(
    attach: Attach, recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
    x = torch.randn(5, 8)
    plain = model(x)
    session = attach(
        model, emulate="current", keep_bf16="3", exclude="0", emulate_only="x,w", layers=["1", "2", "3"], quiet=False
    )
    assert capsys.readouterr().err.splitlines()[1:] == [
        "fp8debug: matched 3 of 4 GEMM layers",
        "fp8debug: emulating current, only x,w in 2 layers, 1 kept in high precision",
    ]
    y = model(x)
    y.sum().backward()
    assert not torch.equal(y, plain)
    session.close()
    assert torch.equal(model(x), plain)
    assert emulated(recorded) == {"0": None, "1": "current, only x,w", "2": "current, only x,w", "3": None}
    # What went in is recorded in high precision.
    weight = model.get_parameter("1.weight")
    assert recorded.row("tensors", layer="1", tensor="w")["amax"] == weight.abs().max().item()


def test_an_emulation_that_was_there_first_is_noted(attach: Attach, recorded: Recorded) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    with fp8debug.emulate(model, "delayed", layers="1", quiet=True), attach(model):
        model(torch.randn(2, 8)).sum().backward()
    assert emulated(recorded) == {"0": None, "1": "delayed"}


class OwnForward(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input)


def test_layers_left_alone_are_an_event(attach: Attach, recorded: Recorded) -> None:
    model = nn.Sequential(nn.Linear(8, 8), OwnForward(8, 8))
    with attach(model, emulate="current"):
        model(torch.randn(2, 8)).sum().backward()
    event = recorded.row("events", kind="not_emulated")
    assert (event["layer"], event["message"]) == ("1", "OwnForward has a forward of its own")


def test_a_capture_that_fails_does_not_end_the_emulation(attach: Attach, recorded: Recorded) -> None:
    model = nn.Sequential(nn.Linear(8, 8))
    x = torch.randn(5, 8)
    plain = model(x)
    session = attach(model, emulate="current")
    session.fail(RuntimeError("planted"))
    assert not torch.equal(model(x), plain)
    session.close()
    assert torch.equal(model(x), plain)
    assert recorded.manifest["status"] == "disabled"


def test_the_users_steps_are_the_emulations_too(attach: Attach, recorded: Recorded) -> None:
    """After session.step() only it ends steps, for the scale of w as for everything that is recorded."""
    model = nn.Sequential(nn.Linear(4, 4, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    outputs = []
    with attach(model, emulate="delayed:megatron", emulate_only="w", recipes="delayed:megatron") as session:
        for number in range(4):
            y = model(torch.eye(4))
            outputs.append(y.detach().T)
            y.square().sum().backward()
            optimizer.step()
            if number % 2:
                session.step()
    scales = [row["scale"] for row in recorded.rows("scales", tensor="w")]
    assert len(set(scales)) == 3  # the first step was ended by the optimizer, before the user had said anything
    for y, scale in zip(outputs, (*scales, scales[2]), strict=True):
        codes = (y * scale).clamp(-448, 448).to(torch.float8_e4m3fn).float()
        assert torch.equal(codes / torch.tensor(scale), y)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("accumulation", {"emulate": "delayed:amax_history_len=2"}),
        ("evaluation", {"emulate": "delayed"}),
        ("lbfgs", {"emulate": "current", "keep_bf16": ["^b$"], "emulate_only": ["x", "dy"]}),
        ("grad_scaler", {"emulate": "delayed"}),
        ("no_model_around", {"emulate": "delayed:amax_history_len=2"}),
    ],
)
def test_unmodified_scripts(
    name: str,
    options: dict[str, Any],
    zygote: Zygote,
    read_run: Callable[[Path], Recorded],
    trainings: ModuleType,
    tmp_path: Path,
) -> None:
    """The same training as with `emulate` in the script."""
    facts = zygote.run(name, tmp_path / "a", **options)
    keep, only = options.get("keep_bf16", ()), options.get("emulate_only", ())
    expected = losses_of(trainings, name, options["emulate"], keep_bf16=keep, only=only)
    assert facts["losses"] == expected != losses_of(trainings, name)
    n_kept = len(keep)
    text = options["emulate"] + (", only x,dy" if only else "")
    kept = f", {n_kept} kept in high precision" if n_kept else ""
    layers = "1 layer" if n_kept else "2 layers"
    assert facts["said"][2] == f"fp8debug: emulating {text} in {layers}{kept}"
    assert emulated(read_run(tmp_path / "a/run")) == {"a": text, "b": None if n_kept else text}


def test_models_that_come_later_are_emulated_too(
    zygote: Zygote, read_run: Callable[[Path], Recorded], tmp_path: Path
) -> None:
    facts = zygote.run("second_model_later", tmp_path / "a", emulate="current", keep_bf16=["head"])
    assert [line for line in facts["said"] if "emulating" in line] == [
        "fp8debug: emulating current in 2 layers; no layer to keep matches 'head'",
        "fp8debug: emulating current in 3 layers, 1 kept in high precision",
    ]
    assert set(emulated(read_run(tmp_path / "a/run")).values()) == {None, "current"}


def test_nothing_to_emulate_stops_before_the_training(zygote: Zygote, tmp_path: Path) -> None:
    facts = zygote.run("accumulation", tmp_path / "a", emulate="current", keep_bf16=["a", "b"])
    assert facts["exit_code"] == 2
    assert facts["message"] == "nothing is left to emulate: 2 of 2 layers are kept in high precision"
    assert not (tmp_path / "a/run").exists()


def test_what_cannot_be_emulated_is_not_trained_without(zygote: Zygote, tmp_path: Path) -> None:
    """Without emulation the training would go on; here it would not be the one that was asked for."""
    facts = zygote.run("finder_breaks", tmp_path / "a", emulate="current")
    assert (facts["exit_code"], facts["message"]) == (1, "cannot emulate: IndexError: list index out of range")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep_bf16": ("a",)}, "--keep-bf16 says what to emulate, but --emulate is not given"),
        ({"emulate_only": ("x",)}, "--emulate-only says what to emulate, but --emulate is not given"),
        ({"emulate": "delaid"}, "unknown recipe 'delaid'"),
        ({"emulate": "current", "emulate_only": ("y",)}, "expected some of x, w, dy, fprop, dgrad, wgrad"),
        ({"emulate": "current", "keep_bf16": ("(",)}, "--keep-bf16"),
    ],
)
def test_options_are_checked_before_anything_runs(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        CapturePlan.from_options(CaptureOptions(**options))


def test_manifests_from_before_still_load(attach: Attach, recorded: Recorded) -> None:
    attach(nn.Sequential(nn.Linear(4, 4))).close()
    manifest = recorded.manifest
    for layer in manifest["layers"]:
        del layer["emulated"]
    assert parse_manifest(recorded.path / "run.json", json.dumps(manifest)).layers[0].emulated is None


@pytest.mark.parametrize("ours", [True, False], ids=["attach-emulates", "script-emulates"])
def test_rows_are_of_what_the_training_computed_with(ours: bool, attach: Attach, recorded: Recorded) -> None:
    """One row a record, recipe and format: the framework's in place of the simulated one; others beside it."""
    recipe = "delayed:amax_history_len=2"
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    if not ours:
        fp8debug.emulate(model, recipe, layers="0", quiet=True)
    options: dict[str, Any] = {"emulate": recipe, "keep_bf16": "1"} if ours else {"recipes": ("delayed", recipe)}
    with attach(model, **{"recipes": ("delayed",)} | options):
        for _ in range(3):
            model(torch.randn(4, 8)).sum().backward()
    sources = {
        (layer, tensor, text): source
        for layer in "01"
        for tensor in ("x", "w", "dy")
        for text, source in (("delayed", "simulated"), (recipe, "framework" if layer == "0" else "simulated"))
    }
    for table in ("scales", "errors"):
        rows = recorded.rows(table, alternate=False)
        assert {(r["layer"], r["tensor"], r["recipe"]): r["source"] for r in rows} == sources
        keys = [(row["seq"], row["recipe"], row["fmt"]) for row in rows]
        assert len(keys) == len(set(keys))


def test_operands_that_are_not_cast_have_no_scale_in_force(attach: Attach, recorded: Recorded) -> None:
    model = nn.Linear(8, 8)
    with attach(model, emulate="delayed", emulate_only="dgrad"):
        model(torch.randn(4, 8, requires_grad=True)).sum().backward()
    sources = {row["tensor"]: row["source"] for row in recorded.rows("scales", alternate=False)}
    assert sources == {"x": "simulated", "w": "framework", "dy": "framework"}


def test_a_capture_leaves_an_emulated_training_as_it_is(attach: Attach) -> None:
    """Bit for bit, with a capture that asks for every scale, also for gradients that come after later forwards."""

    def train(capture: bool) -> list[torch.Tensor]:
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        emulation = fp8debug.emulate(model, "delayed:amax_history_len=2,margin=3", quiet=True)
        session = attach(model, every=2) if capture else None
        losses = []
        for step in range(6):
            first, second = (model(torch.randn(4, 8) * 2**step).square().mean() for _ in range(2))
            second.backward()
            third = model(torch.randn(4, 8)).square().mean()
            first.backward()  # a pipeline's order: its gradient comes after the forward of the next micro-batch
            third.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses += [first.detach(), second.detach(), third.detach()]
        if session is not None:
            session.close()
        emulation.remove()
        return [*losses, *(parameter.detach() for parameter in model.parameters())]

    assert all(torch.equal(a, b) for a, b in zip(train(False), train(True), strict=True))
