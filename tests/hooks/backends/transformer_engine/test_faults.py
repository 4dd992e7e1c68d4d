"""What goes wrong inside fp8debug stays there: the framework ends the process over some errors of a feature."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from fp8debug.hooks.backends.transformer_engine import FEATURE_DIR, debug_config, early, feature, inspection

if TYPE_CHECKING:
    from tests.hooks.conftest import Attach, Recorded

NEUTRAL = {"inspect_tensor_enabled": (False, None), "inspect_tensor": None}


class Broken:
    """A receiver that fails in the way it is told to."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.failed: list[Exception] = []

    def when(self, layer_name: str, tensor_name: str) -> tuple[bool, int | None]:
        raise self.error

    def inspect(self, layer_name: str, tensor_name: str, tensor: Any, quantized: Any, quantizer: Any) -> None:
        raise self.error

    def fail(self, error: Exception) -> None:
        self.failed.append(error)
        raise RuntimeError("telling it fails too")


@pytest.fixture
def api(te: Any, tmp_path: Path) -> Any:
    """The real debug API with the stand-in's namespace and our feature, on all layers."""
    import nvdlfw_inspect.api as debug_api
    from transformer_engine import debug

    early.forget()
    features = [str(next(iter(debug.__path__))) + "/features", str(FEATURE_DIR)]
    debug_api.initialize(debug_config(), features, log_dir=str(tmp_path))
    return debug_api


def call(api: Any, name: str) -> Any:
    """As Transformer Engine calls it."""
    named = {"layer_name": "layer", "tensor_name": "activation", "iteration": 3}
    if name == "inspect_tensor":
        quantized = {"rowwise_quantized_tensor": None, "columnwise_quantized_tensor": None, "quantizer": None}
        named |= {"tensor": torch.ones(2, 2), "tp_group": None, "tp_size": 1, **quantized}
    return getattr(api.transformer_engine, name)(**named)


@pytest.mark.parametrize("error", [AttributeError("a"), ValueError("b"), AssertionError("c"), TypeError("d")], ids=repr)
@pytest.mark.parametrize("name", list(NEUTRAL))
def test_every_error_is_caught(api: Any, name: str, error: Exception) -> None:
    """The neutral answer, once and for all; who is told may fail as well."""
    receiver = Broken(error)
    feature.LINK.receiver = receiver
    assert [call(api, name), call(api, name)] == [NEUTRAL[name]] * 2
    assert receiver.failed == [error], "asked no more after the first"


def test_without_the_guard_the_process_would_end(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Why it is there: the package exits on an AttributeError out of a feature."""

    def unguarded(self: Any, config: Any, layer_name: str, **kwargs: Any) -> None:
        raise AttributeError("nothing here")

    unguarded.__name__ = "inspect_tensor"
    monkeypatch.setattr(feature.Fp8Debug, "inspect_tensor", unguarded)
    with pytest.raises(SystemExit, match="1"):
        call(api, "inspect_tensor")


def test_an_interrupt_is_not_an_error(api: Any) -> None:
    """Ctrl-C goes through."""
    for name in NEUTRAL:
        feature.LINK.receiver = Broken(KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            call(api, name)


def test_other_calls_are_answered_by_the_framework(api: Any) -> None:
    """We have no part in what a GEMM computes, so that features of the user's can."""
    named = {"layer_name": "layer", "gemm": "fprop", "iteration": 0}
    assert api.transformer_engine.fp8_gemm_enabled(**named) == (True, None)
    assert api.transformer_engine.modify_tensor_enabled(tensor_name="weight", **named) == (False, None)
    apis = inspection.manager()._namespace_features_api_map["transformer_engine"]
    assert {name for name, features in apis.items() if "Fp8Debug" in features} == set(NEUTRAL)


def test_answers_of_older_versions(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 2.8 an answer was a bool, and a pair is refused, or true."""
    defaults = api.transformer_engine._default_api_impl
    monkeypatch.setattr(type(defaults), "inspect_tensor_enabled", lambda self, config, layer_name, **kwargs: False)
    assert call(api, "inspect_tensor_enabled") is False
    feature.LINK.receiver = Broken(AttributeError("a"))
    assert call(api, "inspect_tensor_enabled") is False


def test_the_training_goes_on(te: Any, attach: Attach, recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in the middle of a debugged forward: the session is disabled, that step and the others are computed."""
    from fp8debug.hooks.backends.transformer_engine.reporting import Reporter

    def broken(*args: Any) -> None:
        raise AttributeError("no such attribute in this version")

    monkeypatch.setattr(Reporter, "_report", broken)
    torch.manual_seed(0)
    model = nn.Sequential(te.Linear(64, 64), te.LayerNormLinear(64, 64))
    with attach(model) as session:
        for _ in range(3):
            with te.autocast():
                loss = model(torch.ones(4, 64)).square().mean()
            loss.backward()
        assert not session.active
    gradient = model.get_parameter("0.weight").grad
    assert gradient is not None
    assert bool(torch.isfinite(gradient).all())
    assert recorded.manifest["status"] == "disabled"
    assert "no such attribute" in recorded.row("events", kind="disabled")["message"]


@pytest.mark.parametrize("how", ["config", "missing", "exit"])
def test_it_cannot_be_started(
    te: Any, attach: Attach, recorded: Recorded, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Whatever keeps the package from starting is said; modules are made and trained without it."""
    import nvdlfw_inspect.api as debug_api

    def leave(**kwargs: Any) -> None:
        sys.exit(1)

    if how == "config":
        monkeypatch.setattr(inspection, "debug_config", lambda: {"fp8debug": {}})
    elif how == "exit":
        monkeypatch.setattr(debug_api, "initialize", leave)
    else:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    model = nn.Sequential(te.Linear(64, 64))
    with attach(model):
        model(torch.ones(4, 64)).sum().backward()
    assert debug_api.DEBUG_MANAGER is None
    said = {"config": "AssertionError", "missing": "pip install", "exit": "SystemExit"}[how]
    assert said in recorded.row("events", kind="not_captured")["message"]
    assert recorded.keys() == ["0/0/0 forward 0.x", "0/0/0 forward 0.w", "0/0/0 backward 0.dy"]


SCRIPT = """
import sys
import torch
import transformer_engine.pytorch as te

torch.manual_seed(0)
model = torch.nn.Sequential(te.Linear(64, 64), te.LayerNormMLP(64, 128), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(4):
    with te.autocast(recipe=te.DelayedScaling(amax_history_len=4)):
        loss = model(torch.randn(16, 64)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("trained", model[0].n_debugged, model[1].n_debugged)
sys.exit(7)
"""


def test_an_unmodified_script(
    te: Any, tmp_path: Path, stand_in_path: Path, read_run: Callable[[Path], Recorded], warm_python: Any
) -> None:
    """`fp8debug attach train.py` starts the debug API in time, and only its sampled steps are debugged."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    options = ["--out", str(tmp_path / "run"), "--every", "3", "--engine", "torch", "--detail", "none"]
    command = ("-m", "fp8debug", "attach", *options, str(script))
    ran = warm_python.run(tmp_path, *command, PYTHONPATH=str(stand_in_path))
    assert (ran.returncode, ran.stdout.splitlines()[0]) == (7, "trained 2 2"), ran.stderr
    run = read_run(tmp_path / "run")
    seen = {f"{r['layer']}.{r['tensor']}" for r in run.rows("tensors", step=3, dtype="float8_e4m3fn")}
    assert seen == {"0.x", "0.w", "1.fc1.x", "1.fc1.w", "1.fc2.x", "1.fc2.w"}
    kinds = {layer["name"]: (layer["backend"], layer["kind"]) for layer in run.manifest["layers"]}
    assert kinds == {
        "0": ("transformer_engine", "Linear"),
        "1.fc1": ("transformer_engine", "LayerNormMLP"),
        "1.fc2": ("transformer_engine", "LayerNormMLP"),
        "2": ("modules", "Linear"),
    }
    steps = [r["step"] for r in run.rows("scales", layer="1.fc1", tensor="x", source="framework") if r["history_len"]]
    assert steps == [0, 1, 2, 3]
    assert not list(tmp_path.glob("nvdlfw_inspect*")), "its logs are not left in the working directory"
